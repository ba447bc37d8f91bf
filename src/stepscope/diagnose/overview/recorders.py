"""Notes on what was not recorded: recorders died while the job ran, or refused a process."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from stepscope.diagnose.finding import Skipped
from stepscope.trace.signals import signal_name
from stepscope.window import NULL, Table, Window

CLAIMED = "also claimed by "
"""How the reason begins if several live processes claimed a rank."""
MOST_SHOWN = 8
"""Ranks of a note. Our choice."""
_REFUSED = "rank_claims_refused"


def not_recorded(window: Window) -> Iterator[Skipped]:
    yield from _dead_recorders(window)
    yield from _refused_processes(window)
    yield from _not_profiled(window)


def _dead_recorders(window: Window) -> Iterator[Skipped]:
    """One note for each processor whose death is recorded in `exits`."""
    table = window.table("exits")
    if table is None:
        return
    for row in (table.ints("rank") < 0).nonzero()[0].tolist():
        host = table.strings("host")[row] if table.has("host") else None
        moment = datetime.fromtimestamp(int(table.ints("ts_ns")[row]) / 1e9, timezone.utc)
        why = f"{_how(table, row)} at {moment:%Y-%m-%d %H:%M:%S} UTC; rows of the seconds before "
        yield Skipped(f"recorder on {host or 'a host'}", why + "may be missing")


def _refused_processes(window: Window) -> Iterator[Skipped]:
    """One note for each rank that more than one live process claimed at the same time."""
    table = window.table("hardware")
    if table is None:
        return
    rows = table.take(table.strings("metric").equals(_REFUSED) & (table.ints("rank") >= 0))
    most: dict[int, float] = {}
    for rank, number in zip(rows.ints("rank").tolist(), rows.floats("value"), strict=True):
        most[rank] = max(number, most.get(rank, 1.0))
    for rank, number in sorted(most.items()):
        others = "1 other live process" if number <= 1 else f"{number:.0f} other live processes"
        why = f"{CLAIMED}{others}, not recorded; two runs under one job name, or a rank started "
        yield Skipped(f"rank {rank}", why + "twice")


def _not_profiled(window: Window) -> Iterator[Skipped]:
    """One note for each reason why ranks did not profile steps that they were asked to."""
    table = window.table("profiles")
    if table is None:
        return
    found: dict[tuple[str, str], set[int]] = {}
    windows, troubles = table.strings("window"), table.strings("trouble")
    for row, rank in enumerate(table.ints("rank").tolist()):
        trouble = troubles[row]
        if trouble is not None:
            found.setdefault((windows[row] or "?", trouble), set()).add(rank)
    for (name, trouble), ranks in sorted(found.items()):
        shown = ", ".join(map(str, sorted(ranks)[:MOST_SHOWN]))
        more = f" and {len(ranks) - MOST_SHOWN} more" if len(ranks) > MOST_SHOWN else ""
        of = "rank" if len(ranks) == 1 else "ranks"
        yield Skipped(f"profile {name} of {of} {shown}{more}", trouble)


def _how(table: Table, row: int) -> str:
    number, status = (int(table.ints(name)[row]) for name in ("signal", "status"))
    if number != NULL:
        return f"killed ({signal_name(number)})"
    return "vanished" if status == NULL else f"exited with status {status}"


def known_losses(window: Window) -> dict[str, int]:
    """The rows of each table that are known to be lost."""
    table = window.table("losses")
    if table is None:
        return {}
    names, rows = table.strings("table"), table.ints("rows")
    return {name: int(rows[names.equals(name)].sum()) for name in names.values
            if names.equals(name).any()}  # fmt: skip
