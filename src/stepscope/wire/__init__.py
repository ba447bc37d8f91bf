"""Bytes between producers and the processor. Standard library only: producers import it."""
