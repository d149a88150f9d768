"""The Open Inference Protocol, as Triton and KServe speak it: models are methods, and their tensors its arguments.

`models.py` reads from a method which tensors it takes. `inference.py` makes the calls, for HTTP (`http_face.py`) and
gRPC (`grpc/`) alike. The protocol's own words are kept: tensors have datatypes such as FP32, and shapes.
"""
