"""Methods of the libraries, written by `scripts/library-methods` from the declared requests. Not edited by hand."""
