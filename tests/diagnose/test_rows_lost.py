"""Recorders lose rows: neither the ranks nor the links of these are slow for it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from stepscope.diagnose.decide.culprits import choose
from stepscope.diagnose.finding import Slowdown
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.prepare.lost_rows import with_pairs
from stepscope.diagnose.prepare.matching import match
from stepscope.diagnose.suspect import Suspect
from stepscope.trace import Job
from stepscope.window import Floats, Table, Window
from tests.diagnose.jobs import MS, START, a_job, a_table

STEPS, EACH = 4, 4
"""In each step one rank sends four messages to the next one, between two sums of both."""


def messages() -> list[tuple[object, ...]]:
    """The rows of both ranks, in the order of their calls."""
    rows: list[tuple[object, ...]] = []
    for step in range(STEPS):
        first = step * (EACH + 2)
        for rank, op, peer in ((0, "Send", 1), (1, "Recv", 0)):
            now = START + 100 * first * MS
            rows.append((rank, step, "all", first, "AllReduce", -1, now))
            rows += [(rank, step, "all", first + nth, op, peer, now + nth) for nth in range(1, 5)]
            rows.append((rank, step, "all", first + 5, "AllReduce", -1, now))
    return rows


def without(rows: list[tuple[object, ...]], lost: set[int]) -> Table:
    kept = [row for at, row in enumerate(rows) if at not in lost]
    return a_table("rank step group seq op peer enqueue_ns", kept)


def met(table: Table) -> list[list[tuple[int, int]]]:
    """The rank and number of each row, operator by operator."""
    window = with_pairs(Window(Job("lossy", 2), {"comm_ops": table}))
    comm = window.tables["comm_ops"]
    key = match(comm).key
    together = defaultdict(list)
    for at in np.flatnonzero(key >= 0).tolist():
        together[int(key[at])].append((int(comm.ints("rank")[at]), int(comm.ints("seq")[at])))
    return [*together.values()]


def test_a_message_that_was_lost_shifts_no_later_ones() -> None:
    rows = messages()
    lost = rows.index(next(row for row in rows if row[1] == 1 and row[4] == "Send"))
    pairs = [one for one in met(without(rows, {lost})) if len(one) == 2]
    assert all(first[1] == second[1] for first, second in pairs)
    assert len(pairs) == STEPS * (EACH + 2) - EACH, "all but the messages of that step"


def test_a_rank_that_was_recorded_from_a_later_step_on_meets_the_same_messages() -> None:
    rows = messages()
    lost = {at for at, row in enumerate(rows) if row[1] == 0 and row[0] == 1}
    pairs = [one for one in met(without(rows, lost)) if len(one) == 2]
    assert all(first[1] == second[1] for first, second in pairs)
    assert len(pairs) == (STEPS - 1) * (EACH + 2)


def test_what_a_rank_sent_before_another_stood_still_is_received_in_order() -> None:
    """The receives of its last steps are missing, but nothing was lost."""
    rows = messages()
    lost = {at for at, row in enumerate(rows) if row[0] == 1 and int(str(row[3])) > 8}
    window = Window(Job("hung", 2), {"comm_ops": without(rows, lost)})
    assert with_pairs(window) is window


@given(some.sets(some.integers(0, 2 * STEPS * (EACH + 2) - 1), max_size=12))
def test_rows_meet_only_their_own(lost: set[int]) -> None:
    """Collectives are at the ends of each step here: a gap shows every message that is missing. In
    the last step they may be such that were never received."""
    rows = messages()
    inner = {at for at in lost if rows[at][4] != "AllReduce" and rows[at][1] != STEPS - 1}
    assert all(len({seq for _, seq in one}) == 1 for one in met(without(rows, inner)))


def test_where_nothing_was_lost_nothing_changes() -> None:
    window = Window(Job("whole", 2), {"comm_ops": without(messages(), set())})
    assert with_pairs(window) is window


def test_a_rank_whose_phases_were_lost_did_nothing_there_for_an_unknown_time() -> None:
    window = a_job(ranks=8, steps=60, stacks=False)
    gaps = gaps_of(window)
    phases = window.tables["phases"]
    lost = phases.strings("phase").equals("optimizer") & (phases.ints("rank") == 3)
    lost &= phases.ints("step") % 5 == 0
    window = Window(window.job, {**window.tables, "phases": phases.take(~lost)})
    expected = gaps.copy()
    expected[3, ::5] = np.nan
    np.testing.assert_array_equal(gaps_of(window), expected)


def gaps_of(window: Window) -> Floats:
    job = Observed(clean(window)[0])
    return job.own.of("between-phases")


def test_a_slowdown_in_most_steps_of_a_stretch_lasted() -> None:
    """Whatever the phase is in which it shows most, of which it may be a multiple."""
    lasting = slow(effect=1.4, excess_ns=6.7)
    often = slow(effect=1.4, excess_ns=6.3, spikes=tuple(range(104, 300)))
    assert choose([lasting, often]).kept == (lasting,)
    seldom = slow(effect=1.4, excess_ns=5.0, spikes=tuple(range(101, 300, 3)))
    assert choose([lasting, seldom]).kept == (seldom,)


def slow(effect: float, excess_ns: float, spikes: tuple[int, ...] = ()) -> Slowdown:
    suspect = Suspect(7, "between-phases", ("between-phases",), 100, 300, effect, 50.0, 5.0,
                      excess_ns, 1.1, 1, spikes=spikes)  # fmt: skip
    return Slowdown("a method", "unknown", "", suspect=suspect)
