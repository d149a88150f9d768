"""A worker's side of resident memory: `blobs` are filled or adopted; `torch_modules` puts parameters into them."""
