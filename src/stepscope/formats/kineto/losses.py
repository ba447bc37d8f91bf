"""What lost communication leaves unknown of a rank: how long it waited.

A truncated file may lack a part of a rank's communication in each step. Waiting in what is missing
would look like the rank's own time. So the loss is recorded, and the waiting of its phases is
unknown, except in phases in which no other rank ever waits.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepscope.window import NULL, Ints, Mask, Strings, Table, distinct, numbered


def with_losses(tables: Mapping[str, Table], lost: Mask) -> dict[str, Table]:
    """The tables with a table `losses`, and without waits that are not known.

    Args:
        lost: rows of `comm_ops` of ranks of which other rows were lost.
    """
    comm = tables["comm_ops"]
    ranks = distinct(comm.ints("rank")[lost])
    if not ranks.size:
        return dict(tables)
    found = {**tables, "losses": _losses(comm, ranks)}
    if "phases" in tables:
        found["phases"] = _phases(tables["phases"], ranks)
    return found


def _losses(comm: Table, ranks: Ints) -> Table:
    """One row for each rank, over the time of its communication."""
    parts = [comm.take(comm.ints("rank") == rank) for rank in ranks.tolist()]
    each = _in_each_step(comm.take(~np.isin(comm.ints("rank"), ranks)))
    return Table({
        "rank": ranks,
        "table": Strings.of(["comm_ops"] * ranks.size),
        "start_ns": np.array([part.ints("start_ns").min() for part in parts]),
        "end_ns": np.array([part.ints("end_ns").max() for part in parts]),
        "rows": np.array([max(each - _in_each_step(part), 1) * _steps(part) for part in parts]),
    })  # fmt: skip


def _steps(comm: Table) -> int:
    return max(distinct(comm.ints("step")[comm.ints("step") != NULL]).size, 1)


def _in_each_step(comm: Table) -> int:
    """How many operators a rank has in a step, in the median."""
    comm = comm.take(comm.ints("step") != NULL)
    if not len(comm):
        return 0
    return int(np.median(np.bincount(numbered(comm.ints("rank"), comm.ints("step")))))


def _phases(phases: Table, ranks: Ints) -> Table:
    theirs, wait = np.isin(phases.ints("rank"), ranks), phases.ints("wait_ns")
    name = phases.strings("phase").codes
    unknown = theirs & np.isin(name, name[~theirs & (wait > 0)])
    return phases.with_column("wait_ns", np.where(unknown, NULL, wait))
