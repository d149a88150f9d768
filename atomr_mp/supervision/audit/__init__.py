"""The comparison of a pool as it is with a pool as its supervisor believes it to be. Pure."""
