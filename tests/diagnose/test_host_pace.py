"""What a slow host costs: it may become as fast as other hosts, not as fast as their devices."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.account.host_pace import most_lost
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.window import Floats, Window

from .jobs import a_table, put
from .traces import Piece, a_trace

RANKS, STEPS, CALLS, SLOW = 4, 3, 50, 2
US = 1000


def launching(took_us: Floats, stall_us: int = 0) -> Window:
    """Each rank calls 50 operators in each step; the slow one stalls once between two of them."""
    rows = []
    for rank in range(RANKS):
        at = 0
        for step in range(STEPS):
            for call in range(CALLS):
                lasts = int(took_us[rank]) * US
                rows.append((rank, step, "aten::mm" if call % 10 else "aten::item", 1, at, lasts))
                at += lasts + US
                at += stall_us * US if (rank, call) == (SLOW, 20) else 0
    window = a_trace(lambda rank, step: [Piece("gemm", 5.0)], RANKS, STEPS)
    return put(window, host_ops=a_table("rank step name thread start_ns duration_ns", rows))


def lost(window: Window, excess_ms: float = 3.0) -> float | None:
    suspect = Suspect(SLOW, None, (), 0, STEPS, 1.0, 9.0, 3.0, excess_ms * 1e6, 2.0, 0)
    return most_lost(Observed(window), suspect)


def test_a_host_that_is_slower_in_all_it_does_costs_what_its_pace_does() -> None:
    """Twice the time for everything: half of its steps would come back, whatever devices wait."""
    slow = np.array([30, 30, 60, 31])
    assert lost(launching(slow)) == pytest.approx(0.5, abs=0.01)


def test_calls_that_block_on_the_others_are_no_pace() -> None:
    """The others wait for the slow rank in an operator of their own."""
    window = launching(np.array([30, 30, 60, 31]))
    table = window.tables["host_ops"]
    waits = (table.ints("rank") != SLOW) & table.strings("name").equals("aten::item")
    longer = np.where(waits, 4_000 * US, table.ints("duration_ns"))
    blocked = put(window, host_ops=table.with_column("duration_ns", longer))
    assert lost(blocked) == pytest.approx(0.5, abs=0.01)


def test_a_single_stall_is_no_pace() -> None:
    assert lost(launching(np.full(RANKS, 30), stall_us=3_000)) is None


def test_a_host_that_is_as_fast_as_others_costs_nothing() -> None:
    assert lost(launching(np.full(RANKS, 30))) == 0.0
