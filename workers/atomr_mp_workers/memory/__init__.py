"""The memory of a device: slabs, buffers, leases, borrows, and what outlives the process."""
