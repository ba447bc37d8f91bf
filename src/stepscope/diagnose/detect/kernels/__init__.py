"""Ranks and groups whose kernels take longer, by kernels alone."""
