"""Who sends to whom, where gloo's traces do not record it: times of all ranks tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.formats.kineto import read
from stepscope.formats.kineto.peers import with_peers
from stepscope.formats.kineto.read import Reading
from stepscope.trace import UNKNOWN_PEER
from stepscope.window import NULL, Strings, Table

from .traces import Event, event, trace, write

MS = 1_000_000
CALLS = {"Send": ("c10d::send", "gloo:send"), "Recv": ("c10d::recv_", "gloo:recv")}
"""How torch names them: the call, and what executes it."""
Action = tuple[str, float]
"""`compute` and how many ms, or `Send` or `Recv` and the other rank."""


@dataclass(frozen=True)
class Done:
    """What a rank did in a step, from when to when in ms; `peer` is -1 in computing."""

    step: int
    rank: int
    what: str
    peer: int
    start: float
    end: float


def stage(rank: int, ranks: int, forward: float, backward: float, batches: int = 3) -> list[Action]:
    """A stage of a pipeline that does all forward passes first."""
    up: list[Action] = [("Recv", rank - 1)] if rank else []
    down: list[Action] = [("Send", rank + 1)] if rank < ranks - 1 else []
    there = [*up, ("compute", forward), *down]
    back = [("Recv", rank + 1)] * (rank < ranks - 1) + [("compute", backward)]
    back += [("Send", rank - 1)] * (rank > 0)
    return [*there * batches, *back * batches]


def played(steps: Sequence[Sequence[Sequence[Action]]]) -> list[Done]:
    """What ranks do if a send and its receive end soon after both began.

    Args:
        steps: for each step, what each rank does.
    """
    noise = np.random.default_rng(7)
    ranks = range(len(steps[0]))
    programs = [[(step, *one) for step, every in enumerate(steps) for one in every[rank]]
                for rank in ranks]  # fmt: skip
    clocks, at = [0.0 for _ in ranks], [0 for _ in ranks]
    done: list[Done] = []
    while any(at[rank] < len(programs[rank]) for rank in ranks):
        before = list(at)
        for rank in ranks:
            if at[rank] == len(programs[rank]):
                continue
            step, what, value = programs[rank][at[rank]]
            if what == "compute":
                end = clocks[rank] + value * (1 + 0.1 * noise.random())
                done.append(Done(step, rank, what, -1, clocks[rank], end))
                clocks[rank], at[rank] = end, at[rank] + 1
                continue
            peer, other = int(value), "Recv" if what == "Send" else "Send"
            if programs[peer][at[peer] : at[peer] + 1] == [(step, other, rank)]:
                met = max(clocks[rank], clocks[peer])
                for who, op in ((rank, what), (peer, other)):
                    end = met + 0.05 + 0.2 * noise.random()
                    done.append(Done(step, who, op, rank + peer - who, clocks[who], end))
                    clocks[who], at[who] = end, at[who] + 1
        assert at != before, "nobody can go on"
    return done


def pipeline(
    ranks: int = 4, slow: int | None = None, steps: int = 16, odd: int | None = None
) -> list[Done]:
    """A pipeline of which one stage may take longer in its backward passes, and one step may have
    more microbatches."""
    usual, more = (
        [stage(rank, ranks, 4.0, 26.0 if rank == slow else 6.0, batches) for rank in range(ranks)]
        for batches in (3, 5)
    )
    return played([more if number == odd else usual for number in range(steps)])


def operators(
    done: Sequence[Done], known: Sequence[int] = (), place_of: Sequence[int] = ()
) -> tuple[Table, list[int]]:
    """The sends and receives as `comm_ops`, and the other rank of each; `known` ranks record it, or
    all record places in their groups."""
    rows = [one for one in done if one.what != "compute"]
    table = Table({
        "rank": np.array([one.rank for one in rows]),
        "step": np.array([one.step for one in rows]),
        "op": Strings.of([one.what for one in rows]),
        "peer": np.array([one.peer if one.rank in known else UNKNOWN_PEER for one in rows]),
        "place": np.array([place_of[one.rank] if place_of else NULL for one in rows]),
        "partner": np.array([place_of[one.peer] if place_of else NULL for one in rows]),
        "start_ns": np.array([round(one.start * MS) for one in rows]),
        "end_ns": np.array([round(one.end * MS) for one in rows]),
    })  # fmt: skip
    return table, [one.peer for one in rows]


def test_times_tell_who_sends_to_whom() -> None:
    table, peers = operators(pipeline())
    assert with_peers(table).ints("peer").tolist() == peers


def test_places_in_the_group_of_all_ranks_are_ranks() -> None:
    table, peers = operators(pipeline(steps=1), place_of=range(4))
    assert with_peers(table).ints("peer").tolist() == peers


def test_places_in_an_unknown_group_are_no_ranks() -> None:
    table, _ = operators(pipeline(steps=1), place_of=[0, 1, 0, 1])
    assert set(with_peers(table).ints("peer").tolist()) == {UNKNOWN_PEER}


def test_of_two_steps_nothing_is_known() -> None:
    table, _ = operators(pipeline(steps=2))
    assert set(with_peers(table).ints("peer").tolist()) == {UNKNOWN_PEER}


def test_a_step_in_which_ranks_send_more_stays_unknown() -> None:
    table, peers = operators(pipeline(odd=5))
    usual = table.ints("step") != 5
    found = with_peers(table).ints("peer")
    assert found[usual].tolist() == np.array(peers)[usual].tolist()
    assert set(found[~usual].tolist()) == {UNKNOWN_PEER}


def test_ranks_that_were_recorded_are_kept() -> None:
    table, peers = operators(pipeline(), known=(1, 2))
    assert with_peers(table).ints("peer").tolist() == peers


def test_a_pair_of_ranks_has_no_other_choice() -> None:
    table, peers = operators(pipeline(ranks=2, steps=3))
    assert with_peers(table).ints("peer").tolist() == peers


def test_a_ring_in_which_all_send_at_once_has_no_direction() -> None:
    noise = np.random.default_rng(3)
    ring = [Done(step, rank, op, (rank + way) % 4, at, at + 0.1 + 0.1 * noise.random())
            for step, at in enumerate(np.arange(12) * 20.0)
            for rank in range(4) for op, way in (("Send", 1), ("Recv", -1))]  # fmt: skip
    table, _ = operators(ring)
    assert set(with_peers(table).ints("peer").tolist()) == {UNKNOWN_PEER}


def test_a_send_whose_receive_was_not_recorded_leaves_all_unknown() -> None:
    table, _ = operators(pipeline())
    table = table.take(table.ints("rank") != 3)
    assert set(with_peers(table).ints("peer").tolist()) == {UNKNOWN_PEER}


def recorded(folder: Path, done: Sequence[Done]) -> Reading:
    """The traces of these steps as torch writes them for gloo without shapes."""
    for rank in range(4):
        events: list[Event] = []
        for number in range(1 + max(one.step for one in done)):
            step = [one for one in done if one.rank == rank and one.step == number]
            begin, end = step[0].start * 1e3, step[-1].end * 1e3
            events.append(event("user_annotation", f"ProfilerStep#{number}", begin, end - begin))
            for at, one in enumerate(one for one in step if one.what == "compute"):
                name = "aten::mm" if at < 3 else "autograd::engine::evaluate_function: Mm"
                events.append(event("cpu_op", name, one.start * 1e3, (one.end - one.start) * 1e3))
            for one in step:
                if one.what in CALLS:
                    called, executed = CALLS[one.what]
                    start, length = one.start * 1e3, (one.end - one.start) * 1e3
                    events.append(event("cpu_op", called, start, 4))
                    events.append(event("user_annotation", executed, start, length))
        write(folder / f"rank{rank}.json", trace(events, distributedInfo={"rank": rank}))
    return read(folder)


def seconds(done: Sequence[Done]) -> float:
    return max(one.end for one in done) / 1e3


@pytest.mark.parametrize("slow", [0, 1, 2, 3])
def test_a_slow_stage_is_named_although_no_trace_says_who_sends_to_whom(
    tmp_path: Path, slow: int
) -> None:
    reading = recorded(tmp_path, pipeline(slow=slow))
    (verdict,) = diagnose(reading.window).verdicts
    assert verdict.ranks == (slow,) and verdict.phase == "backward-compute"
    saved = 1 - seconds(pipeline()) / seconds(pipeline(slow=slow))
    assert verdict.lost_fraction == pytest.approx(saved, abs=0.1)


def test_a_healthy_pipeline_has_no_verdict(tmp_path: Path) -> None:
    assert not diagnose(recorded(tmp_path, pipeline()).window).verdicts


def test_that_nobody_knows_who_sends_to_whom_is_said_once(tmp_path: Path) -> None:
    problems = recorded(tmp_path, pipeline(steps=2)).problems
    assert sum("who sends to whom" in one for one in problems) == 1


def test_nothing_is_said_where_times_tell(tmp_path: Path) -> None:
    assert not recorded(tmp_path, pipeline()).problems
