"""Jobs of which too little was recorded to say that nothing is wrong, or what it costs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from stepscope.diagnose.account.model import device_excess_ns
from stepscope.diagnose.decide import cost
from stepscope.diagnose.decide.cost import what_if
from stepscope.diagnose.finding import Skipped
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.views.own_time import HIDDEN, OF, OwnTime
from stepscope.evaluate.strip import STRIPS, Context
from stepscope.simulate import Scenario, simulate
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.scenario import Parallelism
from stepscope.trace import UNKNOWN_PEER, Job, ProcessGroup
from stepscope.window import Floats, Strings, Table, Window

from .jobs import MS, START, Fault, a_job, a_table, put
from .traces import Piece, a_trace


@pytest.fixture(scope="module")
def job() -> Window:
    """A device at half its speed from the start, in tensor parallel groups of a pipeline."""
    fault = parse_fault("gpu_slow:ranks=12,factor=2")
    layout = Parallelism(tp=4, pp=2)
    return simulate(
        Scenario(ranks=16, steps=40, seed=8, parallelism=layout, faults=(fault,))
    ).window


def test_passes_with_unmeasured_waiting_are_not_healthy(job: Window) -> None:
    found = diagnose(STRIPS["durations-only"].apply(job, Context()))
    assert found.state == "unknown"
    assert "may be waiting, which nobody measured" in found.unaccounted


def test_calls_of_a_host_that_runs_ahead_do_not_limit_the_cost(job: Window) -> None:
    (true,) = diagnose(job).verdicts
    (found,) = diagnose(STRIPS["host-calls-only"].apply(job, Context())).verdicts
    assert found.ranks == true.ranks == (12,)
    assert true.lost_fraction is not None and true.lost_fraction > 0.3
    assert found.lost_fraction == pytest.approx(true.lost_fraction, abs=0.05)


def test_phases_that_a_device_timed_show_that_calls_say_nothing_of_arrivals() -> None:
    """All call the collective at once, 20 ms into a step, and wait 26 ms in it for the slow one."""
    phases, calls, steps = [], [], []
    for step in range(30):
        now = START + step * 140 * MS
        for rank in range(8):
            works = (126 if rank == 2 else 100) * MS
            steps.append((rank, step, now, 138 * MS))
            phases += [
                (rank, step, "forward-compute", now + 2 * MS, works, 0, 0, now),
                (rank, step, "optimizer", now + 2 * MS + works, 136 * MS - works, 1,
                 128 * MS - works, now + 20 * MS),
            ]  # fmt: skip
            calls.append((rank, step, "all", step, "AllReduce", -1, now + 20 * MS))
    tables = {
        "comm_ops": a_table("rank step group seq op peer enqueue_ns", calls),
        "phases": a_table(
            "rank step phase start_ns duration_ns waits wait_ns host_start_ns", phases
        ),
        "steps": a_table("rank step start_ns duration_ns", steps),
    }
    group = ProcessGroup("all", "dp", tuple(range(8)))
    (found,) = diagnose(Window(Job("job", 8, groups=(group,)), tables)).verdicts
    assert found.ranks == (2,)
    assert found.lost_fraction == pytest.approx(26 / 140, abs=0.03)


def test_transfers_whose_other_end_was_not_recorded_do_not_say_that_nobody_waits() -> None:
    """The collectives of tensor parallel groups, of which there are many more, are all there."""
    fault = parse_fault("gpu_slow:rank=0,factor=1.5,from=0")
    layout = Parallelism(tp=2, pp=4)
    window = simulate(
        Scenario(ranks=16, steps=24, seed=3, parallelism=layout, faults=(fault,), detail="normal")
    ).window
    lost = [3, 5, 11, 14]
    tables = {
        name: table if not table.has("rank") else table.take(~np.isin(table.ints("rank"), lost))
        for name, table in window.tables.items() if name in ("comm_ops", "steps")
    }  # fmt: skip
    (found,) = diagnose(Window(window.job, tables)).verdicts
    assert found.ranks == (0,)


@pytest.mark.parametrize("stages", [2, 4])
def test_operators_without_known_peers_do_not_say_that_nobody_waits(stages: int) -> None:
    """Profilers note the peers of sends and receives only on request."""
    fault = parse_fault("gpu_slow:rank=2,factor=1.5,from=0")
    layout = Parallelism(pp=stages)
    simulation = simulate(
        Scenario(ranks=8, steps=30, seed=5, parallelism=layout, faults=(fault,), detail="normal")
    )
    comm = simulation.window.tables["comm_ops"]
    peers = np.where(comm.ints("peer") >= 0, UNKNOWN_PEER, comm.ints("peer"))
    tables = {**simulation.window.tables, "comm_ops": comm.with_column("peer", peers)}
    (found,) = diagnose(Window(simulation.job, tables)).verdicts
    assert found.ranks == (2,)
    true = simulation.truth.faults[0].lost_fraction
    assert found.lost_fraction == pytest.approx(true, abs=0.05)


def test_a_replay_does_not_veto_what_devices_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a trace it is measured for how long the others' devices do nothing but communicate."""

    def wins_nothing(self: object, savings: object) -> Floats:
        return np.zeros(6)

    monkeypatch.setattr(cost._Healing, "lost_ns", wins_nothing)
    window = a_trace(lambda rank, step: [Piece("gemm", 45.0 if rank == 1 else 20.0)])
    (found,) = diagnose(window).verdicts
    assert found.ranks == (1,)
    assert found.lost_fraction == pytest.approx(25 / 48, abs=0.05)


def test_a_replay_does_not_veto_what_a_rank_takes_longer_and_comes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where operators were not recorded, what ranks wait in them seems to be their own work."""

    def wins_nothing(self: object, savings: object) -> Floats:
        return np.zeros(30)

    monkeypatch.setattr(cost._Healing, "lost_ns", wins_nothing)
    fault = parse_fault("gpu_slow:rank=2,factor=1.5,from=0")
    simulation = simulate(Scenario(ranks=8, steps=30, seed=5, faults=(fault,), detail="normal"))
    slow, phases = ("forward-compute", "backward-compute"), simulation.window.tables["phases"]
    passes = phases.take(phases.strings("phase").equals(*slow))
    job = Observed(put(simulation.window, phases=passes))
    excess_ns = sum(float(np.nanmedian(job.own.of(one)[2] - job.own.of(one)[3])) for one in slow)
    one = Suspect(2, slow[1], slow, 2, 30, 0.4, 9.0, 5.0, excess_ns, 1.5, 2)
    (share,) = what_if(job, [one]).fractions
    assert share == pytest.approx(simulation.truth.faults[0].lost_fraction, abs=0.06)


def test_a_phase_of_which_only_the_excess_is_known_is_not_hidden_as_well() -> None:
    phases, length = ("mlp", "self_attention"), np.full((2, 20), 40.0)
    own = OwnTime(phases, np.stack([length, length]), np.stack([length, length]),
                  (Skipped(f"{OF}bwd", HIDDEN),))  # fmt: skip
    line = SimpleNamespace(warm_up=0, typical_ns=160.0)
    job = SimpleNamespace(own=own, total=own.total, line=line)
    one = SimpleNamespace(phases=phases)
    assert cost._hidden_factor(job, one) == 2.0  # type: ignore[arg-type]
    job.own = replace(own, lasted={"bwd": 2 * length})
    assert cost._hidden_factor(job, one) == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("optimizer", "phases", "excess"),
    [
        (15.0, ("backward-compute",), (300.0 + 15.0) / 3),
        (10.0, ("backward-compute",), 0.0),  # it is late, but its device is not slow
        (15.0, ("optimizer",), 0.0),  # it has more of the optimizer's state
    ],
)
def test_a_device_is_as_slow_in_passes_as_where_nobody_waits(
    optimizer: float, phases: tuple[str, ...], excess: float
) -> None:
    """Peers wait within their passes for the slow rank, so that these last almost as long."""
    passes, update = np.full((4, 20), 290.0), np.full((4, 20), 10.0)
    passes[1], update[1] = 300.0, optimizer
    own = OwnTime(("backward-compute", "optimizer"), np.stack([passes, update]),
                  np.stack([passes, update]))  # fmt: skip
    window = Window(Job("j", 4), {})
    job = SimpleNamespace(own=own, window=window, has_experts=False,
                          peers_of=lambda row, phase: np.array([0, 2, 3]))  # fmt: skip
    one = SimpleNamespace(row=1, phases=phases, columns=slice(5, 20))
    assert device_excess_ns(job, one) == pytest.approx(excess)  # type: ignore[arg-type]
    measured = Table({"phase": Strings.of(["backward-compute"]), "wait_ns": np.array([0])})
    job.window = Window(Job("j", 4), {"phases": measured})
    most = 5.001 if excess and "backward-compute" in phases else 0.0
    assert device_excess_ns(job, one) <= most, "how long the passes wait is known"  # type: ignore[arg-type]
    apart = Table({"phase": Strings.of(["backward-compute", "dp-allreduce"])})
    job.window = Window(Job("j", 4), {"phases": apart})
    assert device_excess_ns(job, one) <= most, "its communication is timed apart"  # type: ignore[arg-type]


@pytest.mark.parametrize(("slowed", "costs"), [((1,), True), ((1, 2), False)])
def test_a_rank_with_spikes_in_all_steps_costs_what_it_takes_longer_than_the_next(
    slowed: tuple[int, ...], costs: bool
) -> None:
    """No step shows how long steps are without it; long steps have another reason."""
    window = a_job(
        ranks=8,
        steps=60,
        noise=0.01,
        stacks=False,
        faults=[
            Fault(slowed, "forward-compute", 0, times=1.5),
            Fault((5,), None, 0, every=2, ms=60.0),
        ],
    )
    tables = {name: window.tables[name] for name in ("steps", "phases")}
    job = Observed(replace(window, tables=tables))
    first, stop = job.line.warm_up, len(job.line.steps)
    one = Suspect(1, "forward-compute", ("forward-compute",), first, stop, 0.4, 9.0, 5.0, 15e6, 1.5,
                  1, spikes=tuple(range(first, stop - 1)))  # fmt: skip
    (share,) = what_if(job, [one]).fractions
    assert (share > 0.02) == costs
