"""Reads the Perfetto traces that stepscope wrote, one file or a folder of them, into a `Window`.

    contents ─▶ packets ─▶ runs ─▶ trace ─▶ tracks ─▶ tables, communication, stacks ─▶ job
    bytes       messages   columns  names    joined   rows of each rank                window

The reverse of `stepscope.perfetto`; `docs/perfetto.md` says what is lost on the way.
"""

from stepscope.formats.perfetto.files import recognise
from stepscope.formats.perfetto.read import Reading, read

__all__ = ["Reading", "read", "recognise"]
