"""Shared libraries that CUDA and NCCL load into training processes, as the package was built."""
