"""What torch calls the things that tell a training loop from other programs."""

from __future__ import annotations

PROFILER_STEP = "ProfilerStep#"
OPTIMIZER_STEP = "Optimizer.step#"
LOADER = "enumerate(DataLoader)#"
AUTOGRAD = "autograd::engine::evaluate_function"
