"""Samples of unequal length in each step: under any names, for a part of the job, by operators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.account.turns import changes
from stepscope.diagnose.decide.same_loss import begin_together
from stepscope.diagnose.detect.work.imbalance import _have_more_tokens as have_more_tokens
from stepscope.diagnose.detect.work.imbalance import _reported as reported
from stepscope.diagnose.finding import SlowLink, Waste
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.simulate import Parallelism, Scenario, Workload, simulate
from stepscope.trace import Host, Job
from stepscope.window import Floats, Table, Window

from .jobs import MS, START, a_table, put
from .traces import Piece, a_trace

RANKS, STEPS = 8, 80


def lengths(spread: float, first: int = 0, stop: int = STEPS) -> Floats:
    """By how much longer the samples of each rank are in each step, `[rank, step]`."""
    drawn = np.random.default_rng(4).normal(size=(RANKS, STEPS))
    noise = np.random.default_rng(5).normal(size=(RANKS, STEPS))
    inside = (np.arange(STEPS) >= first) & (np.arange(STEPS) < stop)
    factors: Floats = np.exp(np.where(inside, spread * drawn, 0.01 * noise))
    return factors


def stalls(ms: float) -> Floats:
    """As factors: in each step another rank is held up."""
    factors = np.ones((RANKS, STEPS))
    factors[np.random.default_rng(6).integers(0, RANKS, STEPS), np.arange(STEPS)] += ms / 60
    return factors


def played(factors: Floats, by_operators: bool = False) -> Window:
    """Rows of a collector that calls its phases `f` and `b`, or records only the collectives."""
    phases, comm, steps, now = [], [], [], START
    for step in range(STEPS):
        took = (60 * MS * factors[:, step]).astype(np.int64)
        end = int((now + took).max()) + 5 * MS
        for rank in range(RANKS):
            middle, met = now + int(took[rank]) // 3, now + int(took[rank])
            phases += [
                (rank, step, "f", now, middle - now),
                (rank, step, "b", middle, met - middle),
            ]
            comm.append((rank, step, "dp-0", step, "AllReduce", -1, met, met, end))
            steps.append((rank, step, now, end - now))
        now = end
    tables: dict[str, Table] = {"steps": a_table("rank step start_ns duration_ns", steps)}
    if by_operators:
        names = "rank step group seq op peer enqueue_ns start_ns end_ns"
        tables["comm_ops"] = a_table(names, comm)
    else:
        tables["phases"] = a_table("rank step phase start_ns duration_ns", phases)
    return Window(Job("uneven", RANKS, (Host("h", tuple(range(RANKS))),)), tables)


@pytest.mark.parametrize("by_operators", [False, True])
def test_lengths_that_change_in_each_step_are_found_from_the_first_step(by_operators: bool) -> None:
    (verdict,) = diagnose(played(lengths(0.4), by_operators)).verdicts
    assert (verdict.cause, verdict.ranks) == ("load_imbalance", ())
    assert verdict.lost_fraction is not None and 0.2 < verdict.lost_fraction < 0.6


def test_lengths_that_change_for_a_part_of_the_job() -> None:
    (verdict,) = diagnose(played(lengths(0.4, 40, 70))).verdicts
    assert (verdict.cause, verdict.ranks) == ("load_imbalance", ())
    assert verdict.steps is not None
    assert np.abs(np.array(verdict.steps) - (40, 69)).max() <= 3


def test_a_rank_that_stalls_makes_no_other_rank_faster() -> None:
    found = diagnose(played(stalls(40), by_operators=True)).verdicts
    assert all(one.cause != "load_imbalance" for one in found)


@pytest.mark.parametrize(
    ("computes", "waits", "found"),
    [
        pytest.param(True, None, True, id="processors work for longer"),
        pytest.param(False, None, False, id="they do not, and nobody knows why"),
        pytest.param(False, 0.5, False, id="ranks wait for processors in turns"),
        pytest.param(False, 0.02, True, id="nor do they wait: a device works that nobody listed"),
    ],
)
def test_more_work_takes_more_processor_time(
    computes: bool, waits: float | None, found: bool
) -> None:
    """On a crowded host ranks wait in turns for a processor, which looks the same otherwise."""
    window = played(lengths(0.4))
    phases, steps = window.tables["phases"], window.tables["steps"]
    took = phases.ints("duration_ns")
    used = took if computes else np.full(took.size, 10 * MS)
    window = put(window, phases=phases.with_column("cpu_ns", used))
    if waits is not None:
        begins = zip(steps.ints("rank").tolist(), steps.ints("start_ns").tolist(), strict=True)
        rows = [("h", rank, "run_delay", at, waits) for rank, at in begins]
        window = put(window, hardware=a_table("host rank metric ts_ns value", rows))
    verdicts = diagnose(window).verdicts
    assert any(one.cause == "load_imbalance" for one in verdicts) is found


@pytest.mark.parametrize("by_operators", [False, True])
def test_steps_need_no_table_of_their_own(by_operators: bool) -> None:
    window = played(lengths(0.4), by_operators)
    rows = {name: table for name, table in window.tables.items() if name != "steps"}
    (verdict,) = diagnose(Window(window.job, rows)).verdicts
    assert (verdict.cause, verdict.ranks) == ("load_imbalance", ())


def test_one_rank_that_is_slow_for_a_few_steps_is_no_unequal_work() -> None:
    """A stretch reaches beyond the slow steps, and there somebody else is the slowest."""
    factors = lengths(0.0)[:, :24]
    factors = np.pad(factors, ((0, 0), (0, STEPS - 24)), mode="wrap")
    factors[3, 40:45] *= 2.0
    assert all(one.cause != "load_imbalance" for one in diagnose(played(factors)).verdicts)


@pytest.mark.parametrize(("hosts", "expected"), [(4, False), (1, True)])
def test_the_slowest_rank_must_be_on_different_hosts(hosts: int, expected: bool) -> None:
    """Other processes take the processors now of one rank of a host, now of another."""
    window, each = played(lengths(0.0)), RANKS // hosts
    of = tuple(Host(f"h{at}", tuple(range(at * each, (at + 1) * each))) for at in range(hosts))
    excess = np.zeros((RANKS, STEPS))
    excess[2 + np.arange(STEPS) % 2, np.arange(STEPS)] = 60.0 * MS
    job = Observed(Window(replace(window.job, hosts=of), window.tables))
    assert changes(job, excess) is expected


@pytest.mark.parametrize("by_operators", [False, True])
def test_steps_that_are_all_about_as_long_lose_as_much(by_operators: bool) -> None:
    """EROICA, section 6.2: the busiest rank computes 46 % longer. Some rank always does."""
    factors = 1 + 0.5 * np.random.default_rng(7).random((RANKS, STEPS))
    factors[np.arange(STEPS) % RANKS, np.arange(STEPS)] = 1.5
    factors *= lengths(0.02)
    (verdict,) = diagnose(played(factors, by_operators)).verdicts
    assert (verdict.cause, verdict.ranks) == ("load_imbalance", ())
    assert verdict.lost_fraction == pytest.approx(0.25 * 60 / 95, abs=0.04)


def test_slightly_unequal_lengths_are_ordinary() -> None:
    assert diagnose(played(lengths(0.04))).verdicts == ()


@pytest.mark.parametrize(("sharding", "seed"), [("fsdp", 3), ("fsdp", 4), ("zero1", 3)])
def test_the_loss_is_what_equal_samples_would_save(sharding: str, seed: int) -> None:
    """Simulated. Fully sharded replicas meet in every layer of every microbatch."""
    simulation = simulate(
        Scenario(
            ranks=64, steps=40, seed=seed, workload=Workload(kind="variable"),
            parallelism=Parallelism(sharding=sharding, microbatches=8),  # type: ignore[arg-type]
        )
    )  # fmt: skip
    (verdict,) = diagnose(simulation.window).verdicts
    (lengths,) = simulation.truth.inherent
    assert (verdict.cause, verdict.ranks) == ("load_imbalance", ())
    assert verdict.lost_fraction == pytest.approx(lengths.lost_fraction, abs=0.05)


def test_the_same_ranks_in_all_steps_are_not_said_to_be_different_ones() -> None:
    """Half of the ranks are slow, each to another degree, so that no slow few can be named."""
    speeds = np.array([1.0, 1.0, 1.02, 1.1, 1.2, 1.3, 1.4, 1.45])
    found = diagnose(played(lengths(0.01) * speeds[:, None])).verdicts
    assert not any("different" in one.summary for one in found)


@pytest.mark.parametrize("padded", [False, True])
def test_ranks_that_exchange_more_tokens_have_more_work(padded: bool) -> None:
    """Exchanges that are padded to one size do not show it."""
    speeds = np.array([1.0, 1.0, 1.02, 1.1, 1.2, 1.3, 1.4, 1.45])
    tokens = np.where(padded, 1.0, speeds)
    moved = [(rank, step, "dp-0", step, "AllToAll", int(1e6 * tokens[rank]))
             for step in range(STEPS) for rank in range(RANKS)]  # fmt: skip
    window = put(played(lengths(0.01)), comm_ops=a_table("rank step group seq op bytes", moved))
    longer = np.repeat(speeds[:, None] - 1.15, STEPS, axis=1)
    assert have_more_tokens(Observed(window), longer, slice(5, STEPS)) is not padded


def test_what_began_with_a_slow_link_is_no_work_of_its_own() -> None:
    """Who waits for whom changes with the link."""
    unequal = Waste("unequal-work", "load_imbalance", "", steps=(30, 69), lost_fraction=0.2)
    link = SlowLink("slow-link", "network", "", ranks=(4,), steps=(31, 69), lost_fraction=0.15)
    before = replace(unequal, steps=(5, 69))
    assert [begin_together(one, link) for one in (unequal, before)] == [True, False]


def test_three_steps_of_a_trace_are_enough() -> None:
    """Sixteen devices compute for other lengths in each step: a trace has no more steps."""
    drawn = np.exp(0.4 * np.random.default_rng(3).normal(size=(16, 3)))

    def work(rank: int, step: int) -> list[Piece]:
        return [Piece("gemm", 60.0 * float(drawn[rank, step]))]

    window = a_trace(work, 16, 3)
    verdict = diagnose(in_two_passes(window)).verdicts[0]
    assert (verdict.cause, verdict.ranks) == ("load_imbalance", ())


def in_two_passes(window: Window) -> Window:
    """The passes of the trace, a third of them forward."""
    phases = window.tables["phases"]
    own = phases.ints("duration_ns") - phases.ints("wait_ns")
    rows = zip(phases.ints("rank"), phases.ints("step"), phases.ints("start_ns"), own,
               phases.ints("wait_ns"), strict=True)  # fmt: skip
    parts = []
    for rank, step, start, took, wait in rows:
        middle = took // 3
        rest = took - middle + wait
        parts.append((rank, step, "forward-compute", start, middle, 0))
        parts.append((rank, step, "backward-compute", start + middle, rest, wait))
    return put(window, phases=a_table("rank step phase start_ns duration_ns wait_ns", parts))


def test_of_many_ranks_one_happens_to_take_longer_in_each_step() -> None:
    """Of 2,048 that do equal work, by a fifth."""
    found = Waste("unequal-work", "load_imbalance", "", lost_fraction=0.15, score=0.4)
    assert [reported(found, ranks).score for ranks in (8, 2048)] == [0.5, 0.4]
