"""Collectives on GPUs: mailboxes that the members of a world map from each other, and kernels that meet in them."""
