"""One file of a job folder as it was when it was read."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from stepscope.errors import FormatError
from stepscope.store import bounds
from stepscope.store.decode import approximate_rows
from stepscope.store.history import Beginning
from stepscope.store.layout import is_merged
from stepscope.store.location import Entry, Location
from stepscope.store.merged import WHOLE, Claims, Share, claims_in, counting_rows
from stepscope.trace import TABLES, Job
from stepscope.trace.parsing import parse_job


@dataclass(eq=False)
class StoredFile:
    """One file as it was when it was listed, with its rows, its job, or a problem.

    `data` are its bytes until the rows are needed. `share` says which of its `count` rows are in
    `rows`; None: none of them.
    """

    entry: Entry
    data: bytes | None = None
    rows: pa.Table | None = None
    job: Job | None = None
    problem: str | None = None
    claims: Claims | None = None
    share: Share | None = WHOLE
    count: int | None = None
    left_out: int = 0
    """Rows of impossible ranks among those that count."""

    @property
    def table(self) -> str:
        return self.entry.path.partition("/")[0]

    def decode(self, share: Share | None, location: Location) -> None:
        """Decodes the bytes into the rows that count, or into a problem.

        If other rows count than before, because of a compactor, the file is read again.
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
            rows = counting_rows(self.table, self.entry.path, data, share)
        except FormatError as error:
            self.problem = str(error)
        else:
            self.count = share.skip + rows.num_rows if not share.without else None
            self.rows, self.left_out = bounds.within(rows)

    @property
    def approximate_rows(self) -> int:
        """The approximate number of rows, without decoding any."""
        if self.rows is not None:
            return self.rows.num_rows
        return 0 if self.data is None else approximate_rows(self.data)

    def forget(self, begin: Beginning) -> bool:
        """Drops older rows; returns whether there were any."""
        if self.rows is None:
            return False
        before, self.rows = self.rows, begin.kept(self.table, self.rows)
        return self.rows is not before


def read_file(location: Location, entry: Entry) -> StoredFile | None:
    """Reads a file; None if it is gone."""
    is_table = entry.path.partition("/")[0] in TABLES
    if not is_table and entry.size_bytes > bounds.MOST_JOB_BYTES:
        return StoredFile(entry, problem=f"has {entry.size_bytes} bytes; no job has so many ranks")
    data = location.get(entry.path)
    if data is None:
        return None
    if is_merged(entry.path):
        return _merged(entry, data)
    if is_table:
        return StoredFile(entry, data)
    try:
        return StoredFile(entry, job=parse_job(data))
    except FormatError as error:
        return StoredFile(entry, problem=str(error))


def _merged(entry: Entry, data: bytes) -> StoredFile:
    try:
        return StoredFile(entry, data, claims=claims_in(data))
    except FormatError as error:
        return StoredFile(entry, problem=str(error))
