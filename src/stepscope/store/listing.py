"""Lists the files of a table while a compactor may be at work.

A compactor puts a merged file before it deletes the files in it. Listing the small files first and
the merged ones afterwards therefore finds each row at least once, and `merged` says which copy
counts. A bucket lists by name, and the folder `sorted` comes after `recorder=…`. A disk has no
order, and a listing may miss both a merged file and the one that replaces it; so merged files are
listed again until nothing changes. A merged file is replaced after an hour at the earliest
(`compact.SETTLED_S`), so two equal listings have missed none.
"""

from __future__ import annotations

from stepscope.store.layout import SORTED, is_merged
from stepscope.store.location import Entry, Location

_LOOKS = 5
"""One is usual; more are needed only if files are merged in the milliseconds between two."""


def list_table(location: Location, table: str) -> list[Entry]:
    """Every file of a table; none if there is no such table."""
    entries = location.files(table)
    if not location.is_local:
        return entries
    others = [entry for entry in entries if not is_merged(entry.path)]
    return [*others, *_settled(location, f"{table}/{SORTED}")]


def _settled(location: Location, folder: str) -> list[Entry]:
    listed = location.files(folder)
    for _ in range(_LOOKS):
        before, listed = listed, location.files(folder)
        if before == listed:
            break
    return [entry for entry in listed if is_merged(entry.path)]
