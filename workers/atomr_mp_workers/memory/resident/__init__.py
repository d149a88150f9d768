"""Resident memory, as a worker has it: `blobs` are filled or adopted; `torch_modules` puts parameters into them."""
