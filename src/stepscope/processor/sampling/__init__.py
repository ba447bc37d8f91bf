"""Observes the ranks' processes from outside: call stacks, stopped processes, hardware."""
