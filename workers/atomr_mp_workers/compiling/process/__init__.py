"""What runs in the compiler's process, and nowhere else: NVRTC and nvJitLink, and the walls around them."""
