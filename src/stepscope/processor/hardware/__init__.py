"""Samples hardware counters of the host, its GPUs, its network ports and the ranks' processes."""
