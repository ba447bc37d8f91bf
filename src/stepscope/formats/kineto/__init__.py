"""Reads traces of `torch.profiler` (Kineto's JSON), one file per rank, into a `Window`.

    contents ─▶ document ─▶ _native ─▶ recording ─▶ steps, comm, phases, stacks ─▶ rank_trace ─▶ job
    bytes       events      columns    sorted       tables of one rank                        window

`docs/methods/kineto.md` describes what is read, how, and what cannot be known.
"""

from stepscope.formats.kineto.files import named_so, recognise
from stepscope.formats.kineto.read import Reading, read

__all__ = ["Reading", "named_so", "read", "recognise"]
