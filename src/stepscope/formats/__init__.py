"""Readers of other programs' files: PyTorch profiler traces and Flight Recorder dumps."""
