"""The protocol between producers and the processor. Standard library only, for producers."""
