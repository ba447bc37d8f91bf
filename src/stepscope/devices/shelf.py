"""Where the ledger lies in a store: one object per job and writer, which no other writer changes.

    <store>/_devices/<job>/<host>.json

Each writer puts its object as a whole and reads nothing before, so writers that work at the same
time lose nothing. A writer that knows more of a job replaces its own object. Of several writers of
one job, the one that observed most of it counts. No job is called `_devices`: names of jobs do not
begin with `_`.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from stepscope.devices.evidence import JobEvidence
from stepscope.devices.record import LARGEST_BYTES, from_bytes, to_bytes
from stepscope.errors import FormatError
from stepscope.store.layout import DEVICES, safe_name
from stepscope.store.location import Entry, Location
from stepscope.store.source import jobs_in

_THREADS = 8


@dataclass(frozen=True)
class Read:
    """All evidence in a store, one per job, the oldest first; and why objects were left out."""

    jobs: tuple[JobEvidence, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Shelf:
    """The part of a store that holds the evidence of its jobs."""

    store: Location

    def put(self, one: JobEvidence) -> None:
        """Stores the evidence of a job; what this host said of it before is replaced.

        Raises:
            StoreError: the store cannot be written.
        """
        path = f"{safe_name(one.job)}/{safe_name(one.writer)}.json"
        self._folder.put(path, to_bytes(one))

    def read(self) -> Read:
        """Raises SourceError if the store cannot be read; a damaged object is only reported."""
        with ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(self._read, self._objects()))
        by_job: dict[str, JobEvidence] = {}
        for one in found:
            if isinstance(one, JobEvidence):
                by_job[one.job] = max(by_job.get(one.job, one), one, key=_knows)
        jobs = sorted(by_job.values(), key=lambda one: (one.until_ns, one.job))
        return Read(tuple(jobs), tuple(one for one in found if isinstance(one, str)))

    def missing(self, known: Sequence[JobEvidence]) -> list[str]:
        """The folders of jobs in the store that have no evidence yet, or had not ended then."""
        done = {safe_name(one.job) for one in known if one.ended}
        return jobs_in(self.store, done)

    @property
    def _folder(self) -> Location:
        return self.store.child(DEVICES)

    def _objects(self) -> list[Entry]:
        return [one for one in self._folder.files() if one.path.endswith(".json")]

    def _read(self, entry: Entry) -> JobEvidence | str | None:
        """The evidence, or why there is none; None if it was deleted meanwhile."""
        where = f"{self._folder}/{entry.path}"
        if entry.size_bytes > LARGEST_BYTES:
            return f"{where}: it has {entry.size_bytes} bytes; at most {LARGEST_BYTES} are read"
        data = self._folder.get(entry.path)
        try:
            return None if data is None else from_bytes(data)
        except FormatError as error:
            return f"{where}: {error}"


def _knows(one: JobEvidence) -> tuple[int, int, int, str]:
    """Orders the evidence of several writers by how much of the job they observed."""
    return one.ranks, one.until_ns, one.written_ns, one.writer
