"""How a world's calls run in this process: on one thread (`world_thread`), as its ring says (`gang_queue`).

Parts of batched and stepped methods are decoded as they come (`batched_method`, `stepped_method`, `steps_run`). Parts
with refs wait until their memory is free (`waiting_parts`).
"""
