"""The edge to NVML: which GPUs there are, and how they are. No CUDA context is made."""
