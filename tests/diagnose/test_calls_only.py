"""Hangs of jobs on NCCL: only the calls of hosts are known, and where their stacks are."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose, find_hang
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Window, joined

from .jobs import MS, START, a_table, put
from .test_hang import SECOND, the_hang

GROUPS = (ProcessGroup("tp-0", "tp", (0, 1)), ProcessGroup("tp-1", "tp", (2, 3)),
          ProcessGroup("dp-0", "dp", (0, 1, 2, 3)))  # fmt: skip
HUNG = 10
PER_STEP = 4
DEVICE = "train (train.py:5);step (adam.py:9);synchronize (streams.py:92)"
LOADER = "train (train.py:4);__next__ (dataloader.py:708);get (queue.py:170)"
SAVES = "train (train.py:7);save_checkpoint (train.py:70);write (zip.py:4)"
EVALUATES = "train (train.py:8);evaluate (train.py:60);synchronize (streams.py:92)"
SENDS = "train (train.py:5);recv_forward (p2p.py:401)"


@dataclass
class Play:
    """Steps of a second; what each rank called in the step that did not finish, and did later."""

    called: tuple[int, int, int, int] = (PER_STEP,) * 4
    """Operators of each rank's tensor group; all four go with the data parallel one."""
    stacks: dict[int, str] = field(default_factory=dict)
    lived_s: float = 60.0
    """How long processes were sampled after their last calls."""
    finished: bool = False
    """The last step finished, too."""

    def window(self) -> Window:
        job = Job("nccl", 4, (Host("h", (0, 1, 2, 3)),), groups=GROUPS)
        last = HUNG + 1 if self.finished else HUNG
        steps = [(rank, step, START + step * SECOND, SECOND)
                 for rank in range(4) for step in range(last)]  # fmt: skip
        calls = [row for rank in range(4) for step in range(HUNG + 1)
                 for row in self._calls(rank, step)]  # fmt: skip
        end = START + (HUNG + 1) * SECOND
        stacks = [(rank, "MainThread", end, int(self.lived_s * SECOND), frames)
                  for rank, frames in self.stacks.items()]  # fmt: skip
        seconds = range(int(HUNG + 1 + self.lived_s))
        hardware = [(rank, "h", "cpu_util", START + second * SECOND, 1.0)
                    for rank in range(4) for second in seconds]  # fmt: skip
        hardware += [(-1, "h", "load1", START + second * SECOND, 1.0) for second in range(200)]
        tables = {
            "steps": a_table("rank step start_ns duration_ns", steps),
            "comm_ops": a_table("rank step group seq op peer enqueue_ns state", calls),
            "hardware": a_table("rank host metric ts_ns value", hardware),
        }
        if stacks:
            tables["stacks"] = a_table("rank thread start_ns duration_ns frames", stacks)
        return Window(job, tables)

    def _calls(self, rank: int, step: int) -> list[tuple[object, ...]]:
        count = self.called[rank] if step == HUNG else PER_STEP
        begin = START + step * SECOND
        rows: list[tuple[object, ...]] = [
            (rank, step, f"tp-{rank // 2}", step * PER_STEP + at, "AllReduce", -1,
             begin + at * 100 * MS, "done") for at in range(count)]  # fmt: skip
        if count == PER_STEP:
            rows.append((rank, step, "dp-0", step, "AllReduce", -1, begin + 500 * MS, "done"))
        return rows

    def diagnosed(self) -> Diagnosis:
        return diagnose(self.window())


def waiting(**others: str) -> dict[int, str]:
    """All ranks wait for their devices, except `r2=…`."""
    return {rank: others.get(f"r{rank}", DEVICE) for rank in range(4)}


@pytest.mark.parametrize(
    ("called", "frames", "cause"),
    [
        pytest.param(0, LOADER, "data_loading", id="in its loader"),
        pytest.param(2, SENDS, "unknown", id="before a receive"),
        pytest.param(2, "train (train.py:5);tokenize (text.py:8)", "code", id="in other code"),
    ],
)
def test_the_rank_whose_host_made_fewer_calls_is_named(
    called: int, frames: str, cause: str
) -> None:
    play = Play((PER_STEP, PER_STEP, called, PER_STEP), waiting(r2=frames))
    for found in (find_hang(play.window()), play.diagnosed()):
        verdict = the_hang(found)
        assert (verdict.ranks, verdict.cause, verdict.victims) == ((2,), cause, 3)
        assert verdict.confidence == 0.8


def test_of_hosts_with_fewer_calls_one_that_waits_for_its_device_is_a_victim() -> None:
    """Rank 3 logs its loss early, so its host waits for the device sooner than the others."""
    play = Play((PER_STEP, PER_STEP, 1, 2), waiting(r2=LOADER))
    assert the_hang(play.diagnosed()).ranks == (2,)
    alone = Play((PER_STEP, PER_STEP, PER_STEP, 2), waiting())
    assert the_hang(alone.diagnosed()).ranks == ()


def test_where_all_made_the_same_calls_the_job_hangs_and_nobody_is_named() -> None:
    verdict = the_hang(Play(stacks=waiting()).diagnosed())
    assert (verdict.ranks, verdict.cause) == ((), "unknown")
    assert 0.5 <= verdict.confidence < 0.8


def test_without_a_stack_the_rank_with_fewer_calls_is_a_suspect() -> None:
    verdict = the_hang(Play((PER_STEP, PER_STEP, 0, PER_STEP)).diagnosed())
    assert verdict.ranks == (2,)
    assert verdict.confidence < 0.5


def test_without_a_stack_a_rank_that_is_idle_while_all_others_spin_is_named() -> None:
    """Hosts that wait for their devices do not sleep in this job, and it does."""
    window = Play((PER_STEP, PER_STEP, 0, PER_STEP)).window()
    hardware = window.tables["hardware"]
    sleeps = (hardware.ints("rank") == 2) & (hardware.ints("ts_ns") > START + HUNG * SECOND)
    cores = hardware.with_column("value", np.where(sleeps, 0.0, hardware.floats("value")))
    verdict = the_hang(diagnose(put(window, hardware=cores)))
    assert (verdict.ranks, verdict.confidence) == ((2,), 0.8)
    assert "it uses no CPU time" in verdict.summary


def test_a_rank_that_left_out_a_call_and_went_on_is_named() -> None:
    """It waits for its device, as the others do, but it called what comes after."""
    window = Play(stacks=waiting()).window()
    comm = window.tables["comm_ops"]
    last = comm.strings("group").equals("tp-1") & (comm.ints("step") == HUNG)
    left_out = last & (comm.ints("rank") == 2) & (comm.ints("seq") == HUNG * PER_STEP + 1)
    later = last & (comm.ints("rank") == 2) & (comm.ints("seq") > HUNG * PER_STEP + 1)
    comm = comm.with_column("seq", comm.ints("seq") - later).take(~left_out)
    verdict = the_hang(diagnose(put(window, comm_ops=comm)))
    assert (verdict.ranks, verdict.cause, verdict.confidence) == ((2,), "code", 0.8)


@pytest.mark.parametrize(
    "play",
    [
        pytest.param(Play(stacks=waiting(), lived_s=20), id="not yet for long"),
        pytest.param(Play(stacks=waiting(), lived_s=0), id="killed in mid-step"),
        pytest.param(Play(stacks=waiting(), finished=True), id="finished, processes live on"),
        pytest.param(Play(stacks=waiting(r0=SAVES)), id="one saves"),
        pytest.param(Play(stacks=dict.fromkeys(range(4), SAVES)), id="all save"),
        pytest.param(Play(), id="no stacks: they may save"),
        pytest.param(Play((0, PER_STEP, PER_STEP, PER_STEP), waiting(r0=SAVES)), id="rank 0 saves"),
        pytest.param(Play(stacks=dict.fromkeys(range(4), EVALUATES)), id="all evaluate"),
    ],
)
def test_it_is_no_hang(play: Play) -> None:
    assert find_hang(play.window()) is None
    assert play.diagnosed().state != "hang"


def test_members_that_number_their_calls_differently_are_not_behind() -> None:
    """The recorder of rank 2 attached late."""
    window = Play(stacks=waiting(r2=LOADER)).window()
    comm = window.tables["comm_ops"]
    behind = comm.ints("seq") - 3 * (comm.ints("rank") == 2)
    found = find_hang(put(window, comm_ops=comm.with_column("seq", behind)))
    assert found is None or the_hang(found).ranks == ()


def ended(play: Play, **since: float) -> Window:
    """`r1=15.0`: 15 s after the last calls, rank 1 is sampled as stopped or dead, and from then on
    nothing else of it."""
    window = play.window()
    at = {int(name[1:]): START + int((HUNG + 1 + second) * SECOND)
          for name, second in since.items()}  # fmt: skip
    hardware, stacks = window.tables["hardware"], window.tables["stacks"]
    limit = np.array([at.get(rank, 2**62) for rank in hardware.ints("rank").tolist()])
    kept = hardware.take(hardware.ints("ts_ns") < limit)
    states = a_table(
        "rank host metric ts_ns value",
        [
            (
                rank,
                "h",
                "proc_stopped",
                START + second * SECOND,
                float(START + second * SECOND >= at.get(rank, 2**62)),
            )
            for rank in range(4)
            for second in range(int(HUNG + 1 + play.lived_s))
        ],
    )
    until = np.array([at.get(rank, 2**62) for rank in stacks.ints("rank").tolist()])
    lasted = np.minimum(stacks.ints("duration_ns"), until - stacks.ints("start_ns"))
    return put(window, hardware=joined([kept, states]),
               stacks=stacks.with_column("duration_ns", lasted))  # fmt: skip


def test_a_stopped_process_is_named_under_nccl_too() -> None:
    play = Play((PER_STEP, PER_STEP, 1, PER_STEP), waiting(), lived_s=20)
    verdict = the_hang(find_hang(ended(play, r2=0)))
    assert (verdict.ranks, verdict.cause) == ((2,), "host")


def test_a_hang_that_was_ended_by_a_signal_keeps_its_culprit() -> None:
    play = Play((PER_STEP, PER_STEP, 0, PER_STEP), waiting(r2=LOADER))
    verdict = the_hang(find_hang(ended(play, r0=40, r1=40, r3=41, r2=42)))
    assert (verdict.ranks, verdict.cause) == ((2,), "data_loading")


def test_a_job_that_was_ended_in_the_middle_of_a_step_did_not_hang() -> None:
    """Its processor lives on and samples that the processes are dead."""
    play = Play((PER_STEP, PER_STEP, 2, PER_STEP), waiting(r2=SENDS))
    assert find_hang(ended(play, r0=1, r1=1, r2=1, r3=1)) is None
