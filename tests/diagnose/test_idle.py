"""What hosts did while their devices had nothing to do."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.explain.idle import Idle, evidence, while_idle
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.stack_rows import read_samples
from stepscope.trace import Job, ProcessGroup
from stepscope.window import Strings, Window

from .jobs import MS, START, a_table

STEPS, STEP_MS, RANKS = 10, 1000, 4
ROOT = "main (train.py:9);"
ISSUING, COMPILING = ROOT + "forward (model.py:3)", ROOT + "step (opt.py:2);compile (cute.py:41)"


def a_job(dry_ms: int, frames: str, beside: bool = False) -> Window:
    """Devices compute all the time, but rank 2's runs dry for a while in each step.

    Its host is meanwhile in some function, or, where `beside`, while its device computes.
    """
    kernels, stacks, comm = [], [], []
    for rank in range(RANKS):
        for step in range(STEPS):
            at = START + step * STEP_MS * MS
            dry = dry_ms * MS if rank == 2 else 0
            end = at + 900 * MS
            kernels.append((rank, step, "gemm", 7, at + dry, end - at - dry))
            comm.append((rank, step, "dp-0", step, "AllReduce", -1, end, end, end + 100 * MS))
            odd = (at, dry) if not beside else (at + 500 * MS, 300 * MS if rank == 2 else 0)
            if odd[1]:
                stacks.append((rank, "MainThread", odd[0], odd[1], frames))
            busy_since = odd[0] + odd[1] if odd[0] == at else at
            until = odd[0] if beside and odd[1] else at + STEP_MS * MS
            stacks.append((rank, "MainThread", busy_since, until - busy_since, ISSUING))
    steps = [(rank, step, START + step * STEP_MS * MS, STEP_MS * MS)
             for rank in range(RANKS) for step in range(STEPS)]  # fmt: skip
    members = tuple(range(RANKS))
    stack_table = a_table("rank thread start_ns duration_ns", [one[:4] for one in stacks])
    return Window(Job("dry", RANKS, (), {}, (ProcessGroup("dp-0", "dp", members),)), {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "kernels": a_table("rank step kernel stream start_ns duration_ns", kernels),
        "comm_ops": a_table("rank step group seq op peer enqueue_ns start_ns end_ns", comm),
        "stacks": stack_table.with_column("frames", Strings.of([one[4] for one in stacks])),
    })  # fmt: skip


def found(window: Window) -> Idle | None:
    seen = Observed(window)
    samples = read_samples(window, seen.line)
    assert samples is not None
    return while_idle(seen, samples, 2, [0, 1, 3], 0, STEPS)


def test_the_function_in_which_a_host_let_its_device_run_dry() -> None:
    idle = found(a_job(300, COMPILING))
    assert idle is not None
    assert idle.function == "compile (cute.py:41)"
    assert idle.idle_ns == pytest.approx(STEPS * 300 * MS)
    assert (idle.mine_ns, idle.peers_ns) == (idle.idle_ns, 0.0)


def test_what_a_host_does_beside_its_busy_device_is_no_reason() -> None:
    assert found(a_job(0, COMPILING, beside=True)) is None


def test_a_device_that_never_runs_dry_shows_nothing() -> None:
    assert found(a_job(0, COMPILING)) is None


def test_a_few_samples_are_no_proof() -> None:
    assert found(a_job(30, COMPILING)) is None


def test_a_host_that_waits_is_named_for_nothing() -> None:
    assert found(a_job(300, ROOT + "wait (distributed.py:5)")) is None


def test_without_kernels_and_phases_nothing_is_known_of_devices() -> None:
    window = a_job(300, COMPILING)
    kept = {name: table for name, table in window.tables.items() if name != "kernels"}
    assert found(Window(window.job, kept)) is None


def test_a_job_without_devices_is_described_without_one() -> None:
    """The same job, whose ranks compute on their hosts: its phases are known, and no kernels."""
    window = a_job(300, COMPILING)
    idle = found(window)
    assert idle is not None
    kept = {name: table for name, table in window.tables.items() if name != "kernels"}
    on_hosts = Observed(Window(window.job, kept)).has_devices
    assert evidence(idle, Observed(window).has_devices).detail.startswith("nothing ran on its dev")
    said = evidence(idle, on_hosts).detail
    assert said.startswith("it neither computed nor communicated for 3.0 s; for 3.0 s of these it")


def test_samples_count_for_as_long_as_nothing_ran() -> None:
    """One run of samples over several steps, in each of which the device ran dry for a moment."""
    window = a_job(200, COMPILING)
    ranks = np.arange(RANKS)
    rows = [(int(rank), "MainThread", START, STEPS * STEP_MS * MS) for rank in ranks]
    table = a_table("rank thread start_ns duration_ns", rows)
    table = table.with_column("frames", Strings.of([COMPILING if r == 2 else ISSUING
                                                    for r in ranks]))  # fmt: skip
    idle = found(Window(window.job, {**window.tables, "stacks": table}))
    assert idle is not None
    assert idle.mine_ns == pytest.approx(STEPS * 200 * MS)


def test_shares_of_many_ranks_are_those_of_each() -> None:
    window = a_job(300, COMPILING)
    samples = read_samples(window, Observed(window).line)
    assert samples is not None
    span = samples.time_ns >= START + 3 * STEP_MS * MS
    rows = np.array([2, 0, 3])
    shares, time_ns = samples.shares_of(rows, span)
    for at, row in enumerate(rows):
        expected, expected_ns = samples.shares(span & (samples.row == row))
        assert shares[at] == pytest.approx(expected)
        assert time_ns[at] == expected_ns
    assert shares.max() > 0.25


def standing_after(step: int) -> Window:
    """Rank 2 writes for a second after a step, while the others are in the next one already."""
    job = a_job(0, ISSUING)
    stacks = job.tables["stacks"]
    late = {name: np.where((table.ints("rank") == 2) & (table.ints("start_ns") >= _begin(step + 1)),
                           1000 * MS, 0)
            for name, table in job.tables.items() if table.has("start_ns")}  # fmt: skip
    tables = {name: table.with_column("start_ns", table.ints("start_ns") + late[name])
              for name, table in job.tables.items() if name in late}  # fmt: skip
    times = zip(stacks.ints("rank"), tables["stacks"].ints("start_ns"),
                stacks.ints("duration_ns"), strict=True)  # fmt: skip
    rows: list[tuple[object, ...]] = [(rank, "MainThread", *when) for rank, *when in times]
    rows.append((2, "MainThread", _begin(step + 1), 1000 * MS))
    frames: list[str | None] = [*[ISSUING] * (len(rows) - 1), ROOT + "flush (io.py:7)"]
    table = a_table("rank thread start_ns duration_ns", rows)
    return Window(job.job, {**tables, "stacks": table.with_column("frames", Strings.of(frames))})


def _begin(step: int) -> int:
    return START + step * STEP_MS * MS


def test_what_a_rank_does_between_its_own_steps_while_others_are_in_the_next() -> None:
    seen = Observed(standing_after(4))
    samples = read_samples(seen.window, seen.line)
    assert samples is not None
    idle = while_idle(seen, samples, 2, [0, 1, 3], 4, 5)
    assert idle is not None and idle.function == "flush (io.py:7)"
