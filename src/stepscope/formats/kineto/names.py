"""Torch's names of events that identify a training loop."""

from __future__ import annotations

PROFILER_STEP = "ProfilerStep#"
OPTIMIZER_STEP = "Optimizer.step#"
LOADER = "enumerate(DataLoader)#"
AUTOGRAD = "autograd::engine::evaluate_function"
