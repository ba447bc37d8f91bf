"""Ranks for which alone all others wait, in jobs that recorded little else."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.detect.ranks.late_alone import LateAlone
from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.method import SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Table, Window

from .jobs import MS, START, Fault, a_job, a_table, put

STEP_MS, STEPS, RANKS = 100.0, 60, 8
HOSTS = tuple(Host(f"host-{at}", (2 * at, 2 * at + 1)) for at in range(RANKS // 2))
ALL = ProcessGroup("dp-0", "dp", tuple(range(RANKS)))
LAYERS = 10


def played(
    late_ms: Floats, ahead_ns: int = 0, ends: bool = True, groups: tuple[ProcessGroup, ...] = ()
) -> Window:
    """Steps and their operators only: in each, ranks work, each group within the model exchanges
    ten times, and then all meet.

    Args:
        late_ms: `[rank, step]`, how much longer each rank works.
        ahead_ns: by how much the clock of the second host is ahead.
        ends: whether it was recorded when operators ended.
    """
    random = np.random.default_rng(3)
    steps, comm, now = [], [], np.full(RANKS, START, np.int64)
    for step in range(late_ms.shape[1]):
        begin, work = now.copy(), random.normal(STEP_MS, 1.0, RANKS) + late_ms[:, step]
        for layer in range(LAYERS if groups else 0):
            called = now + (work / LAYERS * MS).astype(np.int64)
            for group in groups:
                now[list(group.ranks)] = called[list(group.ranks)].max() + MS // 10
                comm += [(rank, step, group.id, step * LAYERS + layer, "AllReduce", -1,
                          int(called[rank]), int(now[rank])) for rank in group.ranks]  # fmt: skip
        arrived = now if groups else now + (work * MS).astype(np.int64)
        now = np.full(RANKS, arrived.max() + 2 * MS)
        comm += [(rank, step, ALL.id, step, "AllReduce", -1, int(arrived[rank]), int(now[rank]))
                 for rank in range(RANKS)]  # fmt: skip
        steps += [(rank, step, int(begin[rank]), int(now[rank] - begin[rank]))
                  for rank in range(RANKS)]  # fmt: skip
    table = a_table("rank step group seq op peer enqueue_ns end_ns", comm)
    called, end = (table.ints(name) + ahead_ns * np.isin(table.ints("rank"), HOSTS[1].ranks)
                   for name in ("enqueue_ns", "end_ns"))  # fmt: skip
    known = {**table.columns, "enqueue_ns": called, "start_ns": called, "end_ns": end}
    table = Table({name: one for name, one in known.items()
                   if ends or name not in ("start_ns", "end_ns")})  # fmt: skip
    job = Job("met", RANKS, HOSTS, groups=(*groups, ALL))
    times = a_table("rank step start_ns duration_ns", steps)
    return Window(job, {"comm_ops": table, "steps": times})


def found(window: Window) -> Verdict:
    (verdict,) = diagnose(window).verdicts
    return verdict


def late(*ranks: int, ms: float, first: int = 0, stop: int = STEPS, every: int = 1) -> Floats:
    more = np.zeros((RANKS, STEPS))
    for rank in ranks:
        more[rank, first:stop:every] = ms
    return more


def without_marks(job: Window) -> Window:
    """As recorded where a thread trains that nobody follows: steps and calls, and no phase but the
    optimizer's, so that waiting looks like work."""
    phases = job.tables["phases"]
    kept: Table = phases.take(phases.strings("phase").equals("optimizer"))
    return put(job, phases=kept.with_column("wait_ns", np.zeros(len(kept), np.int64)))


def test_a_rank_that_is_always_last_is_named() -> None:
    slow = a_job(
        ranks=2, steps=60, stacks=False, faults=[Fault((1,), "forward-compute", 0, ms=40.0)]
    )
    verdict = found(without_marks(slow))
    assert verdict.ranks == (1,) and verdict.confidence >= 0.5


def test_lateness_in_turns_is_noise() -> None:
    noisy = without_marks(a_job(ranks=2, steps=60, stacks=False, noise=0.1))
    assert not diagnose(noisy).verdicts


def test_a_host_that_is_late_for_a_few_steps_is_named_as_a_whole() -> None:
    verdict = found(played(late(2, 3, ms=90.0, first=30, stop=36)))
    assert (verdict.ranks, verdict.hosts, verdict.cause) == ((2, 3), ("host-1",), "host")
    assert verdict.steps is not None and abs(verdict.steps[0] - 30) <= 1
    assert abs((verdict.lost_fraction or 0.0) - 0.09) < 0.03, "six of fifty-seven steps"


def test_lateness_adds_up_in_the_operators_of_a_group_and_shows_its_member() -> None:
    pairs = tuple(ProcessGroup(f"tp-{at}", "tp", (at, at + 4)) for at in range(4))
    window = played(late(5, ms=40.0), groups=pairs)
    assert found(window).ranks == (5,)


def test_ranks_of_a_host_that_hold_up_their_group_in_turns_are_the_host() -> None:
    pairs = tuple(ProcessGroup(f"tp-{at}", "tp", host.ranks) for at, host in enumerate(HOSTS))
    turns = late(2, ms=9, every=2) + late(3, ms=9, first=1, every=2)
    verdict = found(played(turns, groups=pairs))
    assert (verdict.ranks, verdict.cause) == ((2, 3), "host")
    assert verdict.confidence >= 0.5


def test_who_saves_for_all_on_a_schedule_is_left_alone_until_it_costs_a_tenth() -> None:
    assert not diagnose(played(late(0, ms=75.0, first=9, every=10))).verdicts
    costly = found(played(late(0, ms=200.0, first=9, every=10)))
    assert costly.ranks == (0,) and costly.confidence >= 0.5


def test_nobody_plans_to_hold_up_all_others_every_few_steps() -> None:
    """A callback that uploads metrics every fifth step costs less than a tenth, and is named."""
    often = found(played(late(0, ms=50.0, first=4, every=5)))
    assert often.ranks == (0,) and often.confidence >= 0.5


def test_clocks_that_nobody_could_align_make_no_host_late() -> None:
    calm = played(late(ms=0.0), ahead_ns=80 * MS, ends=False)
    assert not diagnose(calm).verdicts
    verdict = found(played(late(3, ms=60.0, first=25), ahead_ns=80 * MS, ends=False))
    assert verdict.ranks == (3,)


def test_hosts_that_run_ahead_of_their_devices_by_different_times_are_not_late() -> None:
    """Calls return at once, and nothing else was recorded."""
    random = np.random.default_rng(4)
    ahead_ms = np.array([0, 5, 3, 90, 1, 4, 2, 6])
    rows = [(rank, step, ALL.id, 2 * step + at, "AllReduce", -1,
             START + int((100 * step + 30 * at + ahead_ms[rank] + random.normal(0, 1)) * MS))
            for step in range(STEPS) for rank in range(RANKS) for at in range(2)]  # fmt: skip
    comm = a_table("rank step group seq op peer enqueue_ns", rows)
    assert not diagnose(
        Window(Job("ahead", RANKS, HOSTS, groups=(ALL,)), {"comm_ops": comm})
    ).verdicts


def test_where_most_steps_are_short_a_share_of_the_time_is_one_of_all_steps() -> None:
    """Of three steps two take 1 ms: a rank that is late by 20 ms costs no multiple of the time."""
    random, now, rows, steps = np.random.default_rng(5), START, [], []
    for step in range(STEPS):
        work = random.normal(100.0 if step % 3 == 2 else 1.0, 0.2, RANKS)
        work[5] += 20.0 if step % 3 == 2 else 0.0
        called = now + (work * MS).astype(np.int64)
        end = int(called.max()) + MS // 10
        rows += [(rank, step, ALL.id, step, "AllReduce", -1, int(called[rank]), int(called[rank]),
                  end) for rank in range(RANKS)]  # fmt: skip
        steps += [(rank, step, now, end - now) for rank in range(RANKS)]
        now = end
    names = "rank step group seq op peer enqueue_ns start_ns end_ns"
    window = Window(Job("bursts", RANKS, HOSTS, groups=(ALL,)), {
        "comm_ops": a_table(names, rows),
        "steps": a_table("rank step start_ns duration_ns", steps),
    })  # fmt: skip
    found = LateAlone().detect(Observed(window), SoFar())
    assert [one.lost_fraction for one in found] == [pytest.approx(20 / 122, abs=0.02)]
