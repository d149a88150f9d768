"""The numbers of each library, on the host and against stand-ins of CUDA's."""
