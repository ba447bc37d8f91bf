"""What was read of all files of a recording so far: descriptions of tracks, and their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.errors import SourceError
from stepscope.formats.limits import (
    MOST_SLICES,
    MOST_TEXT_BYTES,
    MOST_TRACKS,
    MOST_UNPACKED_BYTES,
)
from stepscope.formats.perfetto.runs import Run
from stepscope.perfetto import fields
from stepscope.perfetto.packets import NAMELESS, UNKNOWN
from stepscope.window import NULL, Floats, Ints

NOT_READ = ("Verdicts", "launches")
"""Tracks that are drawn from other tables."""
NUMBERS = frozenset((
    "step", "microbatch", "wait_ns", "cpu_ns", "waits", "host_start_ns", "host_ns", "seq", "bytes",
    "enqueue_ns", "blocked_ns", "queued_ns",
))  # fmt: skip
TEXTS = frozenset(("op", "group"))
"""Details that are read."""
NO_TEXT = -1
"""The number of a text that stands for null."""
_NULL_TEXTS = (NAMELESS, UNKNOWN)
MOST_DESCRIPTIONS = 1 << 14
"""Different descriptions that are kept: each host writes one, and another if it learns more."""
_TOGETHER = 64
"""Batches that are joined as soon as a track has so many: small ones take more than their rows."""


@dataclass(frozen=True)
class Description:
    """A track, or the group of a rank or host, which has no parent; `pid` is the rank's number."""

    name: str
    parent: int = 0
    pid: int | None = None


@dataclass
class Texts:
    """All texts, with their numbers."""

    numbers: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0

    def number(self, text: str) -> int:
        """The number of a text; `NO_TEXT` if it stands for null.

        Raises:
            SourceError: there is too much text.
        """
        if text in _NULL_TEXTS:
            return NO_TEXT
        found = self.numbers.get(text)
        if found is None:
            found = self.numbers[text] = len(self.numbers)
            self.size_bytes += len(text)
            if self.size_bytes > MOST_TEXT_BYTES:
                raise SourceError(f"the traces have more than {MOST_TEXT_BYTES >> 20} MiB of names")
        return found


@dataclass
class Interned:
    """The interned strings of one packet sequence: numbers of texts, and the labels of details."""

    names: dict[int, int] = field(default_factory=dict)
    texts: dict[int, int] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names) + len(self.texts) + len(self.labels)

    def add(self, kind: int, number: int, text: str, among: Texts) -> int:
        """Adds a string of a kind; returns how many there are more than before."""
        before = len(self)
        if kind == fields.EVENT_NAMES:
            self.names[number] = among.number(text)
        elif kind == fields.ANNOTATION_STRINGS:
            self.texts[number] = among.number(text)
        elif kind == fields.ANNOTATION_NAMES and text in NUMBERS | TEXTS:
            self.labels[number] = text
        return len(self) - before


@dataclass(frozen=True)
class Batch:
    """Some rows of a track; names and texts are numbers of the recording's texts."""

    file: Ints
    begin_ns: Ints
    end_ns: Ints
    names: Ints
    value: Floats
    numbers: Mapping[str, Ints]
    texts: Mapping[str, Ints]

    def __len__(self) -> int:
        return len(self.begin_ns)


@dataclass
class Gathered:
    """Rows by the number of their track, and what is known of each track."""

    texts: Texts = field(default_factory=Texts)
    tracks: dict[int, Description] = field(default_factory=dict)
    jobs: set[str] = field(default_factory=set)
    """Descriptions of the job, as JSON."""
    rows: int = 0
    _joined: dict[int, list[Batch]] = field(default_factory=dict)
    _small: dict[int, list[Batch]] = field(default_factory=dict)
    _bytes: int = 0

    def count_bytes(self, size: int) -> None:
        """Counts what is read.

        Raises:
            SourceError: it is more than any recording has.
        """
        self._bytes += size
        if self._bytes > MOST_UNPACKED_BYTES:
            raise SourceError(f"the traces have more than {MOST_UNPACKED_BYTES >> 30} GiB of data")

    def describe(self, uuid: int, track: Description) -> None:
        """Adds what is known of a track.

        Raises:
            SourceError: there are more tracks than any recording has.
        """
        self.tracks[uuid] = track
        if len(self.tracks) > MOST_TRACKS:
            raise SourceError(f"the traces have more than {MOST_TRACKS} tracks")

    def describe_job(self, text: str) -> None:
        """Adds a description of the job."""
        if len(self.jobs) < MOST_DESCRIPTIONS:
            self.jobs.add(text)

    def add(self, run: Run, interned: Interned, file: int) -> None:
        """Adds the rows of a run.

        Raises:
            SourceError: there are more rows than fit into memory.
        """
        track = self.tracks.get(run.track)
        if track is not None and track.name in NOT_READ:
            return
        self.rows += len(run.begin_ns)
        if self.rows > MOST_SLICES:
            raise SourceError(
                f"the traces have more than {MOST_SLICES} slices; read those of fewer ranks, or "
                "write them with --ranks or --steps"
            )
        small = self._small.setdefault(run.track, [])
        small.append(_batch(run, interned, file))
        if len(small) == _TOGETHER:
            self._joined.setdefault(run.track, []).append(joined(small))
            small.clear()

    def of_track(self, uuid: int) -> Batch:
        """Takes the rows of a track, in the order in which they were read."""
        return joined(self._joined.pop(uuid, []) + self._small.pop(uuid))

    def drawn(self) -> list[int]:
        """The tracks that have rows."""
        return list(self._small)


def joined(batches: Sequence[Batch]) -> Batch:
    """Concatenates batches; a detail that one of them lacks is null in its rows."""
    if len(batches) == 1:
        return batches[0]
    numbers = dict.fromkeys(name for one in batches for name in one.numbers)
    texts = dict.fromkeys(name for one in batches for name in one.texts)
    return Batch(
        np.concatenate([one.file for one in batches]),
        np.concatenate([one.begin_ns for one in batches]),
        np.concatenate([one.end_ns for one in batches]),
        np.concatenate([one.names for one in batches]),
        np.concatenate([one.value for one in batches]),
        {name: _column([one.numbers.get(name) for one in batches], batches, NULL)
         for name in numbers},
        {name: _column([one.texts.get(name) for one in batches], batches, NO_TEXT)
         for name in texts},
    )  # fmt: skip


def _column(parts: Sequence[Ints | None], batches: Sequence[Batch], null: int) -> Ints:
    return np.concatenate([np.full(len(batch), null) if part is None else part
                           for part, batch in zip(parts, batches, strict=True)])  # fmt: skip


def _batch(run: Run, interned: Interned, file: int) -> Batch:
    count = len(run.begin_ns)
    labels = interned.labels
    return Batch(
        np.full(count, file),
        run.begin_ns,
        run.end_ns,
        np.full(count, NO_TEXT) if run.names is None else _looked_up(run.names, interned.names),
        np.full(count, np.nan) if run.value is None else run.value,
        {labels[one]: column for one, column in run.numbers.items()
         if labels.get(one, "") in NUMBERS},
        {labels[one]: _looked_up(column, interned.texts) for one, column in run.texts.items()
         if labels.get(one, "") in TEXTS},
    )  # fmt: skip


def _looked_up(interned: Ints, known: Mapping[int, int]) -> Ints:
    """The number of the text of each interned string; `NO_TEXT` for one that was not defined."""
    used, codes = np.unique(interned, return_inverse=True)
    found = np.array([known.get(one, NO_TEXT) for one in used.tolist()], np.int64)
    return found[codes.reshape(-1)]
