"""The tracks of each rank and host: lanes of one track are joined, and copies of rows left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.formats.perfetto.gathered import Batch, Description, Gathered, joined
from stepscope.perfetto.slices import LATEST_NS
from stepscope.window import Column, Ints, Mask, Strings, Table

_DEEPEST = 4
"""Tracks above a track: a counter's lies below one of all counters, and that below its rank."""
_RANK_NAME = re.compile(r"rank \d+ · (?P<host>.+)", re.DOTALL)


@dataclass(frozen=True)
class Owner:
    """Whose tracks they are: a rank's and its host, if that is known; or a host's."""

    rank: int
    host: str | None

    HOST = -1
    """In place of the rank of what a whole host does."""


@dataclass(frozen=True)
class Track:
    """All rows of one track, with the columns `begin_ns`, `end_ns`, `name`, `value` and details.

    `parent` is the name of the track that contains it, if it is not the rank's itself.
    """

    owner: Owner
    name: str
    parent: str
    rows: Table


@dataclass
class Tracks:
    """The tracks of a recording, and how many rows were left out."""

    tracks: list[Track]
    of_unknown: int = 0
    """Rows of tracks that no file describes."""
    impossible: int = 0
    """Rows with impossible times."""
    copies: int = 0
    """Rows that are in several files."""


def tracks_of(gathered: Gathered) -> Tracks:
    """All tracks; those of one name and owner are one."""
    found = Tracks([])
    lanes: dict[tuple[Owner, str, str], list[Batch]] = {}
    for uuid in gathered.drawn():
        batch = gathered.of_track(uuid)
        place = _place(gathered, uuid)
        if place is None:
            found.of_unknown += len(batch)
        else:
            lanes.setdefault(place, []).append(batch)
    values = tuple(gathered.texts.numbers)
    for (owner, name, parent), batches in sorted(lanes.items(), key=lambda one: _order(one[0])):
        rows = _table(joined(batches), values)
        possible = _possible(rows)
        once = _once(rows.take(possible))
        found.impossible += len(rows) - int(possible.sum())
        found.copies += int(possible.sum()) - len(once)
        if len(once):
            found.tracks.append(Track(owner, name, parent, once))
    return found


def _order(place: tuple[Owner, str, str]) -> tuple[int, str, str, str]:
    owner, name, parent = place
    return owner.rank, owner.host or "", name, parent


def _place(gathered: Gathered, uuid: int) -> tuple[Owner, str, str] | None:
    """Whose track it is, its name and that of its parent; None if it belongs to nobody."""
    chain = list(_upwards(gathered, uuid))
    if len(chain) < 2 or chain[-1].parent:
        return None
    owner, track = chain[-1], chain[0]
    if owner.pid is None:
        whose = Owner(Owner.HOST, owner.name)
    else:
        named = _RANK_NAME.fullmatch(owner.name)
        whose = Owner(owner.pid, named["host"] if named else None)
    return whose, track.name, chain[1].name if len(chain) > 2 else ""


def _upwards(gathered: Gathered, uuid: int) -> Iterator[Description]:
    for _ in range(_DEEPEST):
        track = gathered.tracks.get(uuid)
        if track is None:
            return
        yield track
        uuid = track.parent
        if not uuid:
            return


def _table(batch: Batch, values: tuple[str, ...]) -> Table:
    """The batch as columns, in drawing order: by begin, and of slices that begin together the
    longest first."""
    columns: dict[str, Column] = {
        "file": batch.file,
        "begin_ns": batch.begin_ns,
        "end_ns": batch.end_ns,
        "value": batch.value,
        "name": _strings(batch.names, values),
        **batch.numbers,
    }
    columns |= {name: _strings(codes, values) for name, codes in batch.texts.items()}
    return Table(columns).take(np.lexsort((-batch.end_ns, batch.begin_ns)))


def _strings(numbers: Ints, values: tuple[str, ...]) -> Strings:
    """The column of the texts with these numbers, with only the texts that occur in it."""
    used, codes = np.unique(numbers, return_inverse=True)
    known = used >= 0
    places = np.where(known, np.cumsum(known) - 1, -1).astype(np.int32)
    return Strings(places[codes.reshape(-1)], tuple(values[one] for one in used[known].tolist()))


def _possible(rows: Table) -> Mask:
    begin, end = rows.ints("begin_ns"), rows.ints("end_ns")
    return np.asarray((begin >= 0) & (end >= begin) & (end < LATEST_NS))


def _once(rows: Table) -> Table:
    """The rows without copies: rows of another file that are equal in all columns."""
    file = rows.ints("file")
    if not file.size or (file == file[0]).all():
        return rows
    columns = [_comparable(column) for name, column in rows.columns.items() if name != "file"]
    order = np.lexsort((file, *columns))
    copies = file[order][1:] != file[order][:-1]
    for column in columns:
        copies &= column[order][1:] == column[order][:-1]
    kept = np.ones(len(rows), np.bool_)
    kept[order[1:][copies]] = False
    return rows.take(kept)


def _comparable(column: Column) -> Ints:
    if isinstance(column, Strings):
        return column.codes.astype(np.int64)
    return np.ascontiguousarray(column).view(np.int64)


def per_owner(tracks: list[Track]) -> Mapping[Owner, list[Track]]:
    found: dict[Owner, list[Track]] = {}
    for track in tracks:
        found.setdefault(track.owner, []).append(track)
    return found
