"""Traces that `torch.profiler` exports (Kineto's JSON), one file per rank, as a `Window`.

    contents ─▶ document ─▶ _native ─▶ recording ─▶ steps, comm, phases, stacks ─▶ rank_trace ─▶ job
    bytes       events      columns    sorted       tables of one rank                        window

What is read and how, and what cannot be known, stands in `docs/methods/kineto.md`.
"""

from stepscope.formats.kineto.files import named_so, recognise
from stepscope.formats.kineto.read import Reading, read

__all__ = ["Reading", "named_so", "read", "recognise"]
