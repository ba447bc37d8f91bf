"""Slow ranks that get one verdict: neighbours on a host that became slow at the same time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.diagnose.decide.join import joined
from stepscope.diagnose.finding import Slowdown
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.suspect import Suspect
from stepscope.trace import Host
from stepscope.window import Window

from .jobs import MS, Fault, a_job

HOSTS = (Host("host-0", (0, 1, 2, 3, 4, 5, 6, 7)), Host("host-1", (8, 9, 10, 11, 12, 13, 14, 15)))


def slow(*ranks: int, start: int = 100, times: float = 1.6) -> Fault:
    return Fault(ranks, "backward-compute", start, times=times)


def on_hosts(*faults: Fault) -> Window:
    job = a_job(ranks=16, steps=160, faults=faults, stacks=False)
    return replace(job, job=replace(job.job, hosts=HOSTS))


def named(job: Window) -> list[tuple[int, ...]]:
    return sorted(one.ranks for one in diagnose(job).verdicts)


def test_neighbours_that_go_bad_at_once_are_one_verdict() -> None:
    (verdict,) = diagnose(on_hosts(slow(2, 3))).verdicts
    assert (verdict.cause, verdict.ranks, verdict.hosts) == ("compute", (2, 3), ("host-0",))


@pytest.mark.parametrize(
    "other",
    [slow(9), slow(3, start=40), slow(3, times=3.0)],
    ids=["on another host", "since another step", "to another degree"],
)
def test_different_slow_ranks_are_not_joined(other: Fault) -> None:
    assert named(on_hosts(slow(2), other)) == sorted([(2,), other.ranks])


def test_of_what_was_there_from_the_start_two_may_be_chance_and_four_are_not() -> None:
    assert named(on_hosts(slow(2, 3, start=0))) == [(2,), (3,)]
    assert named(on_hosts(slow(2, 3, 5, 6, start=0))) == [(2, 3, 5, 6)]


def test_the_cost_of_several_is_reported_once() -> None:
    alone = diagnose(on_hosts(slow(2))).verdicts[0].lost_fraction
    both = diagnose(on_hosts(slow(2, 3))).verdicts[0].lost_fraction
    assert alone is not None
    assert both == pytest.approx(alone, rel=0.2)


@pytest.mark.parametrize("since", [0, 40])
def test_half_of_the_ranks_are_not_hidden_by_the_others_that_are_a_little_slow(since: int) -> None:
    """Every rank takes longer than its peers somewhere, and some of them much longer."""
    little = Fault((0, 1, 2, 3), "optimizer", since, ms=5)
    much = Fault((4, 5, 6, 7), "backward-compute", since, ms=40)
    (verdict,) = diagnose(a_job(8, 120, 0.02, faults=[little, much], stacks=False)).verdicts
    assert verdict.ranks == (4, 5, 6, 7)
    assert verdict.lost_fraction == pytest.approx(0.28, abs=0.03)


def test_a_host_that_is_slow_in_its_loading_as_well_is_no_slow_device() -> None:
    """Devices do not load data, and eight of them at their full clocks are not slow at once."""
    busy = tuple(range(8))
    found = [a_slowdown(rank, ("data-load", "forward-compute")) for rank in busy]
    job = on_hosts()
    (one,) = joined(Observed(job), found)
    assert (one.cause, one.ranks) == ("host", busy)
    (other,) = joined(Observed(job), [a_slowdown(rank, ("forward-compute",)) for rank in busy])
    assert other.cause == "compute"


def a_slowdown(rank: int, phases: tuple[str, ...]) -> Slowdown:
    suspect = Suspect(rank, None, phases, 100, 200, 0.4, 20.0, 5.0, 40.0 * MS, 1.5, 2)
    return Slowdown("argus-l2", "compute", "", (rank,), suspect=suspect, slowdown=1.5,
                    lost_ns=40.0 * MS, lost_fraction=0.1, columns=frozenset(range(100, 200)),
                    clock=1.0, extent="some")  # fmt: skip


@pytest.mark.parametrize(("ranks", "hosts"), [((1, 2, 4, 7), ["host-0"]), ((1, 2), [])])
def test_loaders_of_a_host_that_are_late_in_turns_have_it_in_common(
    ranks: tuple[int, ...], hosts: list[str]
) -> None:
    late = [replace(a_slowdown(rank, ("data-load",)), cause="data_loading", phase="data-load",
                    steps=(10 * rank, 10 * rank + 40), lost_fraction=0.05)
            for rank in ranks]  # fmt: skip
    (one,) = joined(Observed(on_hosts()), late)
    assert one.ranks == ranks
    assert [device.name for device in one.devices] == hosts


@pytest.mark.parametrize(("times", "expected"), [
    ((1.6, 1.6), [tuple(range(8))]), ((1.6, 1.9), [(0, 1, 2, 3), (4, 5, 6, 7)]),
])  # fmt: skip
def test_hosts_that_are_slow_alike_are_one_verdict(
    times: tuple[float, float], expected: list[tuple[int, ...]]
) -> None:
    faults = (slow(0, 1, 2, 3, start=0, times=times[0]), slow(4, 5, 6, 7, start=0, times=times[1]))
    job = a_job(ranks=24, steps=80, noise=0.02, faults=faults, stacks=False)
    hosts = tuple(Host(f"host-{at}", tuple(range(4 * at, 4 * at + 4))) for at in range(6))
    assert named(replace(job, job=replace(job.job, hosts=hosts))) == expected


def test_a_host_does_not_absorb_its_only_slow_rank_though_its_neighbours_are_slower_than_others(
) -> None:  # fmt: skip
    found = [Slowdown("argus-l2", "compute", "", (rank,), steps=(5, 99), lost_fraction=0.1,
                      lost_ns=MS * (450 if rank == 3 else 60), slowdown=1.7 if rank == 3 else 1.1,
                      columns=frozenset(range(5, 100))) for rank in range(8)]  # fmt: skip
    window = on_hosts()
    assert (3,) in [one.ranks for one in joined(Observed(window), found, frozenset(range(8)))]


@pytest.mark.parametrize(("ms", "ranks"), [(90.0, (2, 3)), (12.0, (2,))])
def test_who_loads_a_little_late_beside_a_slow_loader_is_not_named_with_it(
    ms: float, ranks: tuple[int, ...]
) -> None:
    """Two loaders of one host that are slow alike read by one disk."""
    slow_loader = Fault((2,), "data-load", 60, ms=100.0, computes=False)
    other = Fault((3,), "data-load", 60, ms=ms, computes=False)
    first, *_ = diagnose(on_hosts(slow_loader, other)).verdicts
    assert (first.cause, first.ranks) == ("data_loading", ranks)


def loading(rank: int, excess_ms: float, spikes: tuple[int, ...] = ()) -> Slowdown:
    """A rank that loads data for longer than its peers, by so much in each of its steps."""
    first, stop = (spikes[0], spikes[-1] + 1) if spikes else (0, 12)
    suspect = Suspect(rank, "data-load", ("data-load",), first, stop, 0.0, 9.0, 4.0,
                      excess_ms * MS, 2.0, 1, spikes)  # fmt: skip
    return Slowdown(
        "m", "data_loading", "", (rank,), steps=(first, stop - 1), lost_ns=excess_ms * MS,
        lost_fraction=0.1, suspect=suspect, columns=frozenset(spikes or range(12)),
        spikes=len(spikes) or None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("spikes", "whole"), [((1, 2), [(2,), (3,)]), (tuple(range(1, 12)), [(2, 3)])]
)
def test_a_hiccup_is_not_late_in_turns_with_a_late_loader(
    spikes: tuple[int, ...], whole: list[tuple[int, ...]]
) -> None:
    """Ranks of one host read by one mount; but two long batches are no slow mount."""
    found = joined(Observed(on_hosts()), [loading(2, 4.0), loading(3, 2.0, spikes)])
    assert sorted(one.ranks for one in found) == whole
