"""Readers of what others wrote: PyTorch profiler traces, Flight Recorder dumps."""
