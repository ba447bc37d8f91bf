"""Torch's names of events that identify a training loop."""

from __future__ import annotations

PROFILER_STEP = "ProfilerStep#"
OPTIMIZER_STEP = "Optimizer.step#"
LOADER = "enumerate(DataLoader)#"
COLLECTION = "Python GC"
"""A run of the garbage collector, with `record_python_gc_info` since PyTorch 2.9."""
AUTOGRAD = "autograd::engine::evaluate_function"
