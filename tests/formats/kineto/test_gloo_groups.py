"""Which groups gloo's collectives are of: only their threads and the other ranks tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.diagnose.run import diagnose
from stepscope.formats.kineto import read
from stepscope.formats.kineto.read import Reading

from .traces import Event, event, trace, write

RANKS, STEPS, STEP_MS = 4, 12, 100.0
TP, DP = ((0, 1), (2, 3)), ((0, 2), (1, 3))
Threads = Callable[[int], tuple[list[int], list[int]]]
"""The ids of the threads of a rank's tensor and data parallel group."""


def groups(rank: int) -> list[Event]:
    made = [("0", "default_pg", tuple(range(RANKS)))]
    made += [(f"{1 + at}", "tp", ranks) for at, ranks in enumerate(TP) if rank in ranks]
    made += [(f"{3 + at}", "dp", ranks) for at, ranks in enumerate(DP) if rank in ranks]
    return [{"pg_name": name, "pg_desc": words, "ranks": list(ranks)}
            for name, words, ranks in made]  # fmt: skip


def pairs(rank: int) -> tuple[list[int], list[int]]:
    return [500 + 20 * rank, 501 + 20 * rank], [900 - 20 * rank, 901 - 20 * rank]


def interleaved(rank: int) -> tuple[list[int], list[int]]:
    """Threads of other processes come between the two of a group, on some ranks."""
    return [500 + 20 * rank, 502 + 20 * rank], [900 + rank, 902 + rank] if rank else [900, 901]


def alone(rank: int) -> tuple[list[int], list[int]]:
    tensor, data = pairs(rank)
    return tensor, data[: 1 + (rank > 0)]


def gloo(op: str, start: float, end: float, threads: list[int], number: int) -> Event:
    thread = threads[number % len(threads)]
    return event("user_annotation", f"gloo:{op}", start * 1e3, (end - start) * 1e3, thread)


def step(rank: int, number: int, threads: tuple[list[int], list[int]], late: float) -> list[Event]:
    """The tensor parallel group meets twice, the data parallel group at the end; rank 0 is late.

    The replicas run apart in between: the second needs longer for its forward pass in some steps.
    """
    tensor, data = threads
    at, pair = number * STEP_MS, rank // 2
    begins = 5.0 + (late if rank == 0 else 0.0)
    first = 10.0 + (late if pair == 0 else (number % 3))
    second, last = first + 20, 40.0 + late
    return [
        event("user_annotation", f"ProfilerStep#{number}", at * 1e3, STEP_MS * 1e3 - 1),
        *(event("cpu_op", name, (at + start) * 1e3, (end - start) * 1e3) for name, start, end in (
            ("aten::mm", begins, begins + 1), ("aten::mm", first + 0.5, second - 1),
            ("autograd::engine::evaluate_function: MmBackward0", second + 1, second + 3))),
        gloo("all_reduce", at + begins + 1, at + first + 0.01 * rank, tensor, number),
        gloo("all_reduce", at + second - 1, at + second + 0.01 * rank, tensor, number + 1),
        gloo("all_reduce", at + second + 3, at + last + 0.02 * rank, data, number),
        event("user_annotation", "Optimizer.step#SGD.step", (at + last + 1) * 1e3, 2e3),
        event("cpu_op", "aten::add_", (at + last + 1) * 1e3, 2e3),
    ]  # fmt: skip


def traces(folder: Path, threads: Threads, late: float = 0.0, ranks: int = RANKS) -> Reading:
    for rank in range(ranks):
        events = [one for number in range(STEPS) for one in step(rank, number, threads(rank), late)]
        info = {"rank": rank, "world_size": RANKS, "pg_config": groups(rank)}
        write(folder / f"rank{rank}.json", trace(events, distributedInfo=info))
    return read(folder)


def used(reading: Reading) -> dict[int, list[str | None]]:
    """The groups of the first step's collectives, by rank."""
    comm = reading.window.tables["comm_ops"]
    comm = comm.take(comm.ints("step") == 0)
    found: dict[int, list[str | None]] = {}
    for at, rank in enumerate(comm.ints("rank").tolist()):
        found.setdefault(rank, []).append(comm.strings("group")[at])
    return found


EXPECTED = {
    rank: [f"tp-{1 + rank // 2}", f"tp-{1 + rank // 2}", f"dp-{3 + rank % 2}"]
    for rank in range(RANKS)
}


@pytest.mark.parametrize("threads", [pairs, interleaved])
def test_groups_are_found_although_that_of_all_ranks_is_not_used(
    tmp_path: Path, threads: Threads
) -> None:
    reading = traces(tmp_path, threads)
    assert used(reading) == EXPECTED
    assert reading.problems == ()


def test_a_group_of_which_one_thread_was_recorded_is_reported(tmp_path: Path) -> None:
    reading = traces(tmp_path, alone)
    assert used(reading) == EXPECTED
    (line,) = reading.problems
    assert "only one of the two was recorded" in line


def test_groups_that_one_rank_cannot_tell_are_unknown_and_reported_once(tmp_path: Path) -> None:
    reading = traces(tmp_path, pairs, ranks=1)
    assert used(reading) == {0: [None, None, None]}
    (line,) = reading.problems
    assert line.startswith("gloo does not record the groups")


def test_a_rank_whose_data_comes_late_is_found_behind_its_groups(tmp_path: Path) -> None:
    (verdict,) = diagnose(traces(tmp_path, pairs, late=40.0).window).verdicts
    assert verdict.ranks == (0,)
