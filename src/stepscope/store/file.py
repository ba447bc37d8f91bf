"""One file of a job folder, as it was when somebody read it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from stepscope.errors import FormatError
from stepscope.store.decode import told_rows
from stepscope.store.fragments import parse_job
from stepscope.store.history import Beginning
from stepscope.store.layout import is_merged
from stepscope.store.location import Entry, Location
from stepscope.store.merged import WHOLE, Claims, Share, claims_in, counting_rows
from stepscope.trace import TABLES, Job


@dataclass(eq=False)
class StoredFile:
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

    @property
    def told_rows(self) -> int:
        """About how many rows it has; none are decoded for it."""
        if self.rows is not None:
            return self.rows.num_rows
        return 0 if self.data is None else told_rows(self.data)

    def forget(self, begin: Beginning) -> bool:
        """Drops rows from before; whether there were any."""
        if self.rows is None:
            return False
        before, self.rows = self.rows, begin.kept(self.table, self.rows)
        return self.rows is not before


def read_file(location: Location, entry: Entry) -> StoredFile | None:
    """None where it is gone."""
    data = location.get(entry.path)
    if data is None:
        return None
    if is_merged(entry.path):
        return _merged(entry, data)
    if entry.path.partition("/")[0] in TABLES:
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
