"""Writes and reads job folders, the stored observations of a job.

`JobWriter` writes one host's part and never raises because a store is full or unreachable.
`JobReader` reads a folder or bucket into a `Window`, once or repeatedly while the job runs.
`layout` names the files.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.store.encode import Rows
    from stepscope.store.layout import job_location
    from stepscope.store.location import Location
    from stepscope.store.reader import JobReader
    from stepscope.store.writer import FlushStatus, JobWriter

__all__ = [
    "FlushStatus",
    "JobReader",
    "JobWriter",
    "Location",
    "Rows",
    "job_location",
]

_HOMES = {
    "FlushStatus": "writer",
    "JobReader": "reader",
    "JobWriter": "writer",
    "Location": "location",
    "Rows": "encode",
    "job_location": "layout",
}


def __getattr__(name: str) -> Any:
    """Imports lazily: importing pyarrow takes longer than reading a trace."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
