"""Reads a job folder into a `Window`, once or repeatedly while the job runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType

import pyarrow as pa

from stepscope.errors import FormatError, SourceError
from stepscope.store.assemble import assembled
from stepscope.store.file import StoredFile, read_file
from stepscope.store.history import History, beginning, gained_until_s, needed_since_s
from stepscope.store.layout import JOB_FILE, TOPOLOGY, is_growing, is_merged
from stepscope.store.listing import list_table
from stepscope.store.location import Entry, Location
from stepscope.store.merged import shares
from stepscope.store.source import open_job
from stepscope.trace import TABLES, Job
from stepscope.trace.merging import merge_jobs
from stepscope.trace.parsing import MOST_RANKS
from stepscope.window import Table, Window

# Enough to hide the latency of an object store. Only fetching is parallel: decoding in eight
# threads took three times as long for small files, mostly waiting for one another.
_THREADS = 8

# Each round finds files that appeared or vanished during the previous one. Two are usual, three if
# a job begins or is being compacted; if files keep appearing, the rest waits for the next refresh.
_ROUNDS = 5


@dataclass
class JobReader:
    """Follows one job. Refreshing costs a listing and reading the changed files.

    `problems` has one line for each file that the last refresh had to leave out, with the reason.
    With a `history` no more than that is read and kept; otherwise everything is.

    `version` changes whenever `refresh` returns another window, for callers that keep none.
    """

    source: str
    history: History | None = None
    wanted: Collection[str] = tuple(TABLES)
    """The tables to read."""
    problems: list[str] = field(default_factory=list, init=False)
    version: int = field(default=0, init=False)
    _location: Location | None = field(default=None, init=False)
    _files: dict[str, StoredFile] = field(default_factory=dict, init=False)
    _tables: dict[str, tuple[list[StoredFile], Table]] = field(default_factory=dict, init=False)
    _described: Job | None = field(default=None, init=False)
    _window: Window | None = field(default=None, init=False)
    _needed_since_s: float | None = field(default=None, init=False)
    _whole_since_s: float | None = field(default=None, init=False)

    @property
    def location(self) -> Location:
        """The job folder.

        Raises:
            SourceError: the source is not a job folder.
        """
        if self._location is None:
            self._location = open_job(self.source)
        return self._location

    @property
    def files_held(self) -> int:
        """The number of files in memory."""
        return len(self._files)

    def refresh(self) -> Window:
        """Reads what has changed; returns the same object as before if nothing has.

        Raises:
            SourceError: there is no such job, or its store cannot be read.
            FormatError: there are files, but none can be used.
        """
        files = self._files_now()
        if self._window is None or files != self._files:
            self._files, self._window = files, None  # frees the memory of the old one first
            self.version += 1
            self._window = self._build()
        return self._window

    def read(self) -> Window:
        """Reads the job once: nothing is kept for another read.

        Needs half the memory of `refresh`, and raises the same errors.
        """
        self._files = self._files_now()
        try:
            return self._build(keep=False)
        finally:
            self._files, self._tables, self._window = {}, {}, None
            pool = pa.default_memory_pool()
            # Arrow's own pools keep a tenth of the memory for later reads. Memory from the system's
            # allocator is reused by numpy, and returned pages are expensive to get again.
            if pool.backend_name != "system":
                pool.release_unused()

    def _files_now(self) -> dict[str, StoredFile]:
        """Reads changed files and keeps the others.

        Rows move from replaced files to growing ones, never back, and are first written to the new
        place. Listing and reading in the opposite order therefore misses no moving row.
        """
        settled: dict[str, StoredFile] = {}
        files: dict[str, StoredFile] = {}
        for _ in range(_ROUNDS):
            listed = self._listing()
            late = [e for e in listed if not _only_gains(e.path) and e.path not in settled]
            read = self._load(late, self._files)
            settled |= read
            moved = any(file is not self._files.get(path) for path, file in read.items())
            if moved or len(read) < len(late):
                continue
            files = self._load(listed, {**self._files, **files}, settled)
            if len(files) == len(listed):
                return files
            # a file vanished after it was listed; its replacement, if any, exists now
        in_order = [e for e in listed if _only_gains(e.path) or e.path in settled]
        return self._load(in_order, {**self._files, **files}, settled)

    def _listing(self) -> list[Entry]:
        folders, top = self.location.top()
        listed = [entry for entry in top if entry.path == JOB_FILE]
        for folder in folders:
            if folder in self.wanted:
                listed += filter(_is_ours, list_table(self.location, folder))
            elif folder == TOPOLOGY:
                listed += filter(_is_ours, self.location.files(folder))
        if not listed:
            gone = "gone" if self._files else "empty: nothing was recorded there yet"
            raise SourceError(f"the job at {self.location} is {gone}")
        return listed if self.history is None else self._needed(listed, self.history)

    def _needed(self, listed: list[Entry], history: History) -> list[Entry]:
        """Leaves out files without rows to keep; what was too old once stays so."""
        until_s = gained_until_s(listed)
        found, before = needed_since_s(listed, until_s, history), self._needed_since_s
        self._needed_since_s = max((s for s in (found, before) if s is not None), default=None)
        since_s = self._needed_since_s or -math.inf
        old = {path for path, until in until_s.items() if until < since_s and not self._holds(path)}
        if any(before is None or until_s[path] >= before for path in old - self._files.keys()):
            self._whole_since_s = since_s
        return [one for one in listed if one.path not in old]

    def _holds(self, path: str) -> bool:
        """Whether rows of a file are in memory."""
        file = self._files.get(path)
        return file is not None and file.rows is not None and file.rows.num_rows > 0

    def _load(
        self,
        entries: Iterable[Entry],
        known: Mapping[str, StoredFile],
        settled: Mapping[str, StoredFile] = MappingProxyType({}),
    ) -> dict[str, StoredFile]:
        """Loads the listed files that still exist: `settled` ones as they are, others as listed.

        Files that are `known` and unchanged are not read again.
        """
        files: dict[str, StoredFile] = {}
        changed: list[Entry] = []
        for entry in entries:
            before = known.get(entry.path)
            if entry.path in settled:
                files[entry.path] = settled[entry.path]
            elif before is not None and before.entry == entry:
                files[entry.path] = before
            else:
                changed.append(entry)
        for file in self._read_all(changed):
            files[file.entry.path] = file
        return dict(sorted(files.items()))

    def _read_all(self, entries: list[Entry]) -> list[StoredFile]:
        if not entries:
            return []
        with ThreadPoolExecutor(min(_THREADS, len(entries))) as pool:
            files = pool.map(lambda entry: read_file(self.location, entry), entries)
            return [file for file in files if file is not None]

    def _build(self, keep: bool = True) -> Window:
        if self.history is not None:
            self._forget(self.history)
        for name in TABLES:
            self._build_table(name, keep)
        self.problems = [f"{p}: {f.problem}" for p, f in self._files.items() if f.problem]
        self.problems += [f"{path}: {file.left_out} rows of ranks from {MOST_RANKS} on left out"
                          for path, file in self._files.items() if file.left_out]  # fmt: skip
        self._refuse_if_nothing_is_usable()
        tables = {name: built for name, (_, built) in self._tables.items() if len(built)}
        return Window(self._job(tables), tables)

    def _forget(self, history: History) -> None:
        """Drops rows that are older than the history."""
        pieces = {name: [f.rows for f in self._decoded(name) if f.rows is not None]
                  for name in TABLES}  # fmt: skip
        begin = beginning(pieces, history, self._whole_since_s)
        del pieces
        if begin is None:
            return
        shorter = {file.table for file in self._files.values() if file.forget(begin)}
        for name in shorter:
            self._tables.pop(name, None)

    def _decoded(self, name: str, keep: bool = True) -> Iterator[StoredFile]:
        """The files of a table with their counting rows; without `keep` one at a time in memory."""
        files = self._of_table(name)
        claims = {file.entry.path: file.claims for file in files if file.claims is not None}
        counting = shares([file.entry.path for file in files], claims)
        for file in files:
            file.decode(counting.get(file.entry.path), self.location)
            yield file
            if not keep:
                file.rows = None

    def _of_table(self, name: str) -> list[StoredFile]:
        return [file for file in self._files.values() if file.table == name]

    def _build_table(self, name: str, keep: bool) -> None:
        before, files = self._tables.get(name), self._of_table(name)
        if before is not None and before[0] == files:
            return
        self._tables.pop(name, None)
        room = sum(file.approximate_rows for file in files)
        rows = (file.rows for file in self._decoded(name, keep) if file.rows is not None)
        self._tables[name] = files, assembled(name, rows, room)

    def _refuse_if_nothing_is_usable(self) -> None:
        rows = [f for f in self._files.values() if f.entry.path.endswith(".parquet")]
        if rows and all(f.problem for f in rows):
            more = f" (and {len(rows) - 1} more files)" if len(rows) > 1 else ""
            raise FormatError(
                f"no table of {self.location} can be used: "
                f"{rows[0].entry.path} {rows[0].problem}{more}"
            )

    def _job(self, tables: Mapping[str, Table]) -> Job:
        jobs = [f.job for f in self._files.values() if f.job is not None]
        if jobs:
            self._described = jobs[0] if len(jobs) == 1 else merge_jobs(jobs)
        if self._described is not None:
            return self._described
        broken = self._files.get(JOB_FILE)
        if broken is not None:
            raise FormatError(f"{self.location}/{JOB_FILE} {broken.problem}")
        job = _derived_job(self.location.name, tables)
        self.problems.append(f"no {JOB_FILE}: assuming a job of {job.world_size} ranks")
        return job


def _only_gains(path: str) -> bool:
    """Whether rows are only ever added to a file."""
    return is_growing(path) or is_merged(path)


def _is_ours(entry: Entry) -> bool:
    """Whether a file is to be read: query engines prefix unfinished files with `.` or `_`."""
    folder, *names = entry.path.split("/")
    wanted = ".json" if folder == TOPOLOGY else ".parquet"
    return names[-1].endswith(wanted) and not any(name[0] in "._" for name in names if name)


def _derived_job(name: str, tables: Mapping[str, Table]) -> Job:
    """Derives a job without a description from its rows."""
    highest = (int(t.ints("rank").max()) for t in tables.values() if t.has("rank"))
    return Job(name, max(highest, default=-1) + 1)
