"""Readers of files that are no job folder: PyTorch's profiler traces and Flight Recorder dumps, and
the Perfetto traces of stepscope."""
