"""Recorders that died while the job ran: what their ranks did in these seconds may be missing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import datetime, timezone

from stepscope.diagnose.finding import Skipped
from stepscope.window import NULL, Table, Window


def dead_recorders(window: Window) -> Iterator[Skipped]:
    """One note for each processor whose death is recorded in `exits`."""
    table = window.table("exits")
    if table is None:
        return
    for row in (table.ints("rank") < 0).nonzero()[0].tolist():
        host = table.strings("host")[row] if table.has("host") else None
        moment = datetime.fromtimestamp(int(table.ints("ts_ns")[row]) / 1e9, timezone.utc)
        why = f"{_how(table, row)} at {moment:%Y-%m-%d %H:%M:%S} UTC; rows of the seconds before "
        yield Skipped(f"recorder on {host or 'a host'}", why + "may be missing")


def _how(table: Table, row: int) -> str:
    number, status = (int(table.ints(name)[row]) for name in ("signal", "status"))
    if number != NULL:
        known = number in signal.valid_signals()
        return f"killed ({signal.Signals(number).name if known else f'signal {number}'})"
    return "vanished" if status == NULL else f"exited with status {status}"
