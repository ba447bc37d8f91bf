"""Reads a job folder into a `Window`, once or again and again while the job runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType

import pyarrow as pa

from stepscope.errors import FormatError, SourceError
from stepscope.store.assemble import assemble, recent
from stepscope.store.fragments import parse_job
from stepscope.store.layout import JOB_FILE, TOPOLOGY, is_growing, is_merged
from stepscope.store.listing import list_table
from stepscope.store.location import Entry, Location
from stepscope.store.merged import WHOLE, Claims, Share, claims_in, counting_rows, shares
from stepscope.store.source import open_job
from stepscope.store.topology import merge_jobs
from stepscope.trace import TABLES, Job
from stepscope.window import Table, Window

# Enough to hide the latency of an object store. Only bytes are fetched side by side: decoding in
# eight threads took three times as long for small files, most of it spent waiting for one another.
_THREADS = 8

# Each round meets files that came or went during the one before. Two are usual, three if a job
# begins or is compacted just then; where files never stop coming, the rest waits for the next look.
_ROUNDS = 5


@dataclass(eq=False)
class _File:
    """One file as it was when it was listed, and what it holds: rows, a job, or a problem.

    `data` are its bytes until somebody wants the rows; `share` says which of its `count` rows these
    are, None: none.
    """

    entry: Entry
    data: bytes | None = None
    rows: pa.Table | None = None
    job: Job | None = None
    problem: str | None = None
    claims: Claims | None = None
    share: Share | None = WHOLE
    count: int | None = None

    @property
    def table(self) -> str:
        return self.entry.path.partition("/")[0]

    def decode(self, share: Share | None, location: Location) -> None:
        """Turns the bytes into the rows that count, or into a problem.

        Where others count than before, which a compactor may bring about, it is read once more.
        """
        if self.data is None and share == self.share:
            return
        if share is None or (self.count is not None and self.count <= share.skip):
            data = None
        else:
            data = location.get(self.entry.path) if self.data is None else self.data
        self.data, self.rows, self.share = None, None, share
        if data is None or share is None:
            return
        try:
            self.rows = counting_rows(self.table, self.entry.path, data, share)
        except FormatError as error:
            self.problem = str(error)
        else:
            self.count = share.skip + self.rows.num_rows if not share.without else None

    def forget(self, since_ns: int) -> None:
        """Drops rows from before."""
        if self.rows is not None:
            self.rows = recent(self.table, self.rows, since_ns)


@dataclass
class JobReader:
    """Follows one job. Reading again costs a listing, and reading what has changed.

    `problems` says, one line each, which files the last refresh had to leave out and why.
    """

    source: str
    problems: list[str] = field(default_factory=list, init=False)
    _location: Location | None = field(default=None, init=False)
    _files: dict[str, _File] = field(default_factory=dict, init=False)
    _tables: dict[str, tuple[list[_File], Table]] = field(default_factory=dict, init=False)
    _described: Job | None = field(default=None, init=False)
    _window: Window | None = field(default=None, init=False)

    @property
    def location(self) -> Location:
        """The job folder.

        Raises:
            SourceError: the source names none.
        """
        if self._location is None:
            self._location = open_job(self.source)
        return self._location

    def refresh(self, since_ns: int | None = None) -> Window:
        """The job as it is now; the same object as before where nothing has changed.

        Rows older than `since_ns` are forgotten with the next change; it may only grow.

        Raises:
            SourceError: there is no such job, or its store cannot be read.
            FormatError: there are files, and not one can be used.
        """
        files = self._files_now()
        if self._window is None or files != self._files:
            self._files = files
            try:
                self._window = self._build(since_ns)
            except FormatError:
                self._window = None
                raise
        return self._window

    def read(self) -> Window:
        """The job as it is now, for who looks once: nothing is kept for the next look.

        Needs half the memory that `refresh` does, and raises what that does.
        """
        self._files = self._files_now()
        try:
            return self._build(None, keep=False)
        finally:
            self._files, self._tables, self._window = {}, {}, None
            # else Arrow holds on to a tenth of the memory for what it may read next
            pa.default_memory_pool().release_unused()

    def _files_now(self) -> dict[str, _File]:
        """What has changed is read, the rest is remembered.

        Rows move from replaced files to growing ones, never back, and are written there first: who
        reads in the other order, listing included, misses none on its way.
        """
        settled: dict[str, _File] = {}
        files: dict[str, _File] = {}
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
            # a file vanished after it was listed: what took its place, if anything, is there now
        in_order = [e for e in listed if _only_gains(e.path) or e.path in settled]
        return self._load(in_order, {**self._files, **files}, settled)

    def _listing(self) -> list[Entry]:
        folders, top = self.location.top()
        listed = [entry for entry in top if entry.path == JOB_FILE]
        for folder in folders:
            if folder in TABLES:
                listed += filter(_is_ours, list_table(self.location, folder))
            elif folder == TOPOLOGY:
                listed += filter(_is_ours, self.location.files(folder))
        if not listed:
            gone = "gone" if self._files else "empty: nothing was recorded there yet"
            raise SourceError(f"the job at {self.location} is {gone}")
        return listed

    def _load(
        self,
        entries: Iterable[Entry],
        known: Mapping[str, _File],
        settled: Mapping[str, _File] = MappingProxyType({}),
    ) -> dict[str, _File]:
        """The listed files that are still there: `settled` ones as they are, the others as listed.

        What is `known` and has not changed is not read again.
        """
        files: dict[str, _File] = {}
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

    def _read_all(self, entries: list[Entry]) -> list[_File]:
        if not entries:
            return []
        with ThreadPoolExecutor(min(_THREADS, len(entries))) as pool:
            files = pool.map(lambda entry: _read(self.location, entry), entries)
            return [file for file in files if file is not None]

    def _build(self, since_ns: int | None, keep: bool = True) -> Window:
        for name in TABLES:
            self._build_table(name, since_ns, keep)
        self.problems = [f"{p}: {f.problem}" for p, f in self._files.items() if f.problem]
        self._refuse_if_nothing_is_usable()
        tables = {name: built for name, (_, built) in self._tables.items() if len(built)}
        return Window(self._job(tables), tables)

    def _build_table(self, name: str, since_ns: int | None, keep: bool) -> None:
        files = [file for file in self._files.values() if file.table == name]
        before = self._tables.get(name)
        if before is not None and before[0] == files:
            return
        claims = {file.entry.path: file.claims for file in files if file.claims is not None}
        counting = shares([file.entry.path for file in files], claims)
        for file in files:
            file.decode(counting.get(file.entry.path), self.location)
            if since_ns is not None:
                file.forget(since_ns)
        rows = [file.rows for file in files if file.rows is not None]
        for file in files if not keep else ():
            file.rows = None
        self._tables.pop(name, None)
        if rows:
            self._tables[name] = files, assemble(name, rows)

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
    """Rows come here and go to no file that is read before."""
    return is_growing(path) or is_merged(path)


def _is_ours(entry: Entry) -> bool:
    """Query engines keep their unfinished files under names with `.` or `_` in front."""
    folder, *names = entry.path.split("/")
    wanted = ".json" if folder == TOPOLOGY else ".parquet"
    return names[-1].endswith(wanted) and not any(name[0] in "._" for name in names if name)


def _read(location: Location, entry: Entry) -> _File | None:
    data = location.get(entry.path)
    if data is None:
        return None
    if is_merged(entry.path):
        return _merged(entry, data)
    if entry.path.partition("/")[0] in TABLES:
        return _File(entry, data)
    try:
        return _File(entry, job=parse_job(data))
    except FormatError as error:
        return _File(entry, problem=str(error))


def _merged(entry: Entry, data: bytes) -> _File:
    try:
        return _File(entry, data, claims=claims_in(data))
    except FormatError as error:
        return _File(entry, problem=str(error))


def _derived_job(name: str, tables: Mapping[str, Table]) -> Job:
    """What the rows themselves tell of a job that nobody described."""
    highest = (int(t.ints("rank").max()) for t in tables.values() if t.has("rank"))
    return Job(name, max(highest, default=-1) + 1)
