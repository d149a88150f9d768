"""Descriptions of models: tables in TOML, and Triton's config.pbtxt. The server's parent reads and checks them."""
