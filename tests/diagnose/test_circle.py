"""Hangs in which every rank waits: which of them called something out of order, or left it out."""

from __future__ import annotations

import pytest

from stepscope.diagnose.run import find_hang
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import NULL, Table, Window

from .jobs import START, a_table, put
from .test_hang import SECOND, the_hang

Row = tuple[int, int, str, int, str, int, float, float | None]
WORLD = (ProcessGroup("grads", "dp", (0, 1, 2, 3)), ProcessGroup("loss", "world", (0, 1, 2, 3)))
PIPELINE = (ProcessGroup("pp", "pp", (0, 1)), ProcessGroup("loss", "world", (0, 1)))
HUNG = 8


def calls(*rows: Row) -> Table:
    """(rank, step, group, seq, operator, peer, second of the call, second of the end or None)."""
    return a_table("rank step group seq op peer enqueue_ns end_ns", [
        (rank, step, group, seq, op, peer, START + int(begin * SECOND),
         NULL if end is None else START + int(end * SECOND))
        for rank, step, group, seq, op, peer, begin, end in rows
    ])  # fmt: skip


def a_job(rows: list[Row], groups: tuple[ProcessGroup, ...], hosts: int = 1) -> Window:
    """Steps of a second, recorded for a minute after the last of them."""
    ranks = tuple(sorted({rank for group in groups for rank in group.ranks}))
    size = len(ranks) // hosts
    machines = tuple(Host(f"h{at}", ranks[at * size : (at + 1) * size]) for at in range(hosts))
    job = Job("circle", len(ranks), machines, groups=groups,
              observed_until_ns=START + (HUNG + 60) * SECOND)  # fmt: skip
    steps = a_table(
        "rank step start_ns duration_ns",
        [(rank, step, START + step * SECOND, SECOND) for rank in ranks for step in range(HUNG)],
    )
    return Window(job, {"comm_ops": calls(*rows), "steps": steps})


def averaged(rank: int, step: int, order: str = "gl", ended: bool = True) -> list[Row]:
    """The calls of a step in data parallel training: gradients, then the loss."""
    names = {"g": "grads", "l": "loss"}
    return [(rank, step, names[word], step, "AllReduce", -1, step + 0.2 + at / 10,
             step + 0.5 if ended else None) for at, word in enumerate(order)]  # fmt: skip


def test_the_rank_that_called_in_another_order_than_before_is_named() -> None:
    rows = [row for step in range(HUNG) for rank in range(4) for row in averaged(rank, step)]
    for rank in range(4):
        rows += averaged(rank, HUNG, "l" if rank == 2 else "g", ended=False)
    verdict = the_hang(find_hang(a_job(rows, WORLD)))
    assert (verdict.ranks, verdict.cause, verdict.confidence) == ((2,), "code", 0.9)


def test_of_two_ranks_the_one_that_kept_its_order_is_innocent() -> None:
    groups = tuple(ProcessGroup(one.id, one.kind, (0, 1)) for one in WORLD)
    rows = [row for step in range(HUNG) for rank in range(2) for row in averaged(rank, step)]
    rows += [*averaged(0, HUNG, "l", ended=False), *averaged(1, HUNG, "g", ended=False)]
    assert the_hang(find_hang(a_job(rows, groups))).ranks == (0,)


def test_where_the_order_always_varied_only_the_lone_caller_is_odd() -> None:
    """Each rank had steps in both orders: of four, the one that differs from the others. It is more
    certain if these always called what it called."""
    for alike, sure in ((False, 0.7), (True, 0.9)):
        rows = []
        for step in range(HUNG):
            order = ("gl", "lg", "ggl", "gll", "lgg", "llg", "lgl", "glg")[step]
            rows += [row for rank in range(4) for row in averaged(
                rank, step, "lg" if not step and rank > 1 and not alike else order)]  # fmt: skip
        for rank in range(4):
            rows += averaged(rank, HUNG, "l" if rank == 2 else "g", ended=False)
        verdict = the_hang(find_hang(a_job(_numbered(rows), WORLD)))
        assert (verdict.ranks, verdict.confidence) == ((2,), sure)


def _numbered(rows: list[Row]) -> list[Row]:
    """Sequence numbers that count each rank's calls in each group."""
    count: dict[tuple[int, str], int] = {}
    found = []
    for rank, step, group, _, *rest in rows:
        seq = count[rank, group] = count.get((rank, group), -1) + 1
        found.append((rank, step, group, seq, *rest))
    return found  # type: ignore[return-value]


def piped(step: int, received: int = 2, ended: bool = True) -> list[Row]:
    """Rank 0 sends two microbatches to rank 1, which receives some; both then average the loss."""
    end = step + 0.5
    rows: list[Row] = [(0, step, "pp", step * 2 + at, "Send", 1, step + 0.1 + at / 10,
                        end if at < received else None) for at in range(2)]  # fmt: skip
    rows += [(1, step, "pp", step * 2 + at, "Recv", 0, step + 0.2 + at / 10, end)
             for at in range(received)]  # fmt: skip
    rows += [(rank, step, "loss", step, "AllReduce", -1, step + 0.6, end if ended else None)
             for rank in ((0, 1) if received == 2 else (1,))]  # fmt: skip
    return rows


def test_the_rank_that_left_out_a_receive_is_named_and_not_the_sender() -> None:
    """It went on to the loss, where it waits for the sender."""
    rows = [row for step in range(HUNG) for row in piped(step)] + piped(HUNG, 1, ended=False)
    verdict = the_hang(find_hang(a_job(rows, PIPELINE)))
    assert (verdict.ranks, verdict.cause) == ((1,), "code")


def test_calls_at_the_same_time_keep_the_order_of_their_numbers() -> None:
    """A logger rounds to a tenth of a second: a send and a receive of a ring have one time."""
    ring = (ProcessGroup("ring", "cp", (0, 1, 2)),)
    hung = {0: "srsR", 1: "rrR", 2: "sR"}  # rank 1 sends nothing more; R: a receive that waits
    rows: list[Row] = []
    for step in range(HUNG + 1):
        for rank in range(3):
            calls = "srsrsr" if step < HUNG else hung[rank]
            done = [(rank, step, "ring", 6 * step + at, "Send" if call == "s" else "Recv",
                     (rank + (1 if call == "s" else 2)) % 3, step + 0.1 + at // 2 / 10,
                     None if call == "R" else step + 0.5)
                    for at, call in enumerate(calls)]  # fmt: skip
            turned = [done[at ^ 1] if step >> at // 2 & 1 and at ^ 1 < len(done) else one
                      for at, one in enumerate(done)]  # fmt: skip
            rows += turned
    verdict = the_hang(find_hang(a_job(rows, ring)))
    assert (verdict.ranks, verdict.cause) == ((1,), "code")


def test_after_two_steps_ranks_with_the_same_program_tell_who_left_out_a_receive() -> None:
    """The receivers of two other pipelines called all they called before."""
    pipes = tuple(ProcessGroup(f"pp-{at}", "pp", (2 * at, 2 * at + 1)) for at in range(3))
    groups = (*pipes, ProcessGroup("loss", "world", tuple(range(6))))
    rows: list[Row] = []
    for at in range(3):
        done = [row for step in (HUNG - 2, HUNG - 1) for row in piped(step)]
        open_ = piped(HUNG, 1 if at == 0 else 2, ended=False)
        for rank, step, group, seq, op, peer, begin, end in (*done, *open_):
            name, other = group.replace("pp", f"pp-{at}"), peer if peer < 0 else peer + 2 * at
            rows.append((rank + 2 * at, step, name, seq, op, other, begin, end))
    verdict = the_hang(find_hang(a_job(rows, groups)))
    assert (verdict.ranks, verdict.cause) == ((1,), "code")
    assert "ranks with the same program" in verdict.summary


def test_a_send_that_was_received_is_over_though_nobody_saw_its_end() -> None:
    """With gloo, the end of a send shows only when the sender waits for it."""
    rows = [row for step in range(HUNG) for row in piped(step)]
    unseen = [(*row[:7], None) if row[4] == "Send" else row for row in rows]
    assert find_hang(a_job(unseen, PIPELINE)) is None


STAGES = (ProcessGroup("pp", "pp", (0, 1, 2, 3)),)


def sent(source: int, step: int, begin: float, end: float | None, got: float | None) -> list[Row]:
    return [
        (source, step, "pp", step, "Send", source + 1, step + begin, end and step + end),
        (source + 1, step, "pp", step, "Recv", source, step + begin, got and step + got),
    ]


@pytest.mark.parametrize("later", [True, False])
def test_the_host_at_the_end_of_a_stalled_send_that_moves_nothing_else_is_cut_off(
    later: bool,
) -> None:
    """Rank 1 sends to rank 2 in vain. Its host still receives from rank 0's; then it is not to
    blame. Rank 3 waits for rank 2, which waits for the data."""
    rows = [row for step in range(HUNG) for at in range(3)
            for row in sent(at, step, 0.1 * at, 0.1 * at + 0.05, 0.1 * at + 0.05)]  # fmt: skip
    rows += sent(0, HUNG, 0.0, 0.05, 0.05)
    rows += sent(1, HUNG, 0.1, 0.15, None)
    rows += [(3, HUNG, "pp", HUNG, "Recv", 2, HUNG + 0.1, None)]
    if later:
        rows += sent(0, HUNG + 1, 0.0, 0.05, 0.05)
    verdict = the_hang(find_hang(a_job(rows, STAGES, hosts=4)))
    assert verdict.cause == "network"
    assert verdict.ranks == ((2,) if later else ())


GRID = tuple(ProcessGroup(f"{a}-{b}", "dp", (a, b)) for a, b in ((0, 1), (2, 3), (1, 3), (0, 2)))


def test_the_host_in_every_exchange_that_stalls_is_cut_off() -> None:
    """Ranks 0 and 3 wait for data from rank 1, each in a group of its own, and rank 2 for rank
    3."""
    order = (0.1, GRID[0]), (0.1, GRID[1]), (0.3, GRID[2]), (0.3, GRID[3])
    rows: list[Row] = [
        (rank, step, one.id, step, "AllReduce", -1, step + at, step + at + 0.05)
        for step in range(HUNG) for at, one in order for rank in one.ranks
    ]  # fmt: skip
    rows += [(rank, HUNG, "0-1", HUNG, "AllReduce", -1, HUNG + 0.1, None) for rank in (0, 1)]
    rows += [(rank, HUNG, "1-3", HUNG, "AllReduce", -1, HUNG + 0.1, None) for rank in (1, 3)]
    rows += [(2, HUNG, "2-3", HUNG, "AllReduce", -1, HUNG + 0.1, None)]
    verdict = the_hang(find_hang(a_job(rows, GRID, hosts=4)))
    assert (verdict.cause, verdict.ranks) == ("network", (1,))


def test_recorded_ranks_that_wait_in_a_circle_do_so_whoever_was_not_recorded() -> None:
    """Rank 2 of 6 left out its gradients; of the last two ranks nothing was recorded."""
    groups = tuple(ProcessGroup(one.id, one.kind, tuple(range(6))) for one in WORLD)
    rows = [row for step in range(HUNG) for rank in range(4) for row in averaged(rank, step)]
    for rank in range(4):
        rows += averaged(rank, HUNG, "l" if rank == 2 else "g", ended=False)
    window = a_job(rows, groups)
    steps = window.tables["steps"]
    window = put(window, steps=steps.take(steps.ints("rank") < 4))
    verdict = the_hang(find_hang(window))
    assert (verdict.ranks, verdict.cause, verdict.confidence) == ((2,), "code", 0.9)
