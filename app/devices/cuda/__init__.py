"""NVIDIA GPUs, by way of CuPy and NVRTC."""
