"""Receives that are posted ahead: when a rank of a pipeline really waits."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.numeric.intervals import axis_over
from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.views.awaited import awaited_since, sends_beside_work
from stepscope.diagnose.views.own_time import own_time
from stepscope.diagnose.views.timeline import timeline
from stepscope.simulate import Scenario, simulate
from stepscope.simulate.scenario import Parallelism
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Ints, Strings, Table, Window

from .jobs import MS, START, a_table

MIDDLE = [  # called, starts, ends: one stage between two others, with one pass each way
    ("Recv", 0, 0, 45),
    ("Recv", 6, 45, 60),  # posted ahead: in progress while the first is computed until 89
    ("Send", 7, 89, 90),
    ("Send", 8, 130, 131),
    ("Recv", 9, 45, 348),  # the gradients, awaited since the last send
    ("Send", 10, 430, 431),
]


def since(rows: list[tuple[str, int, int, int]], called: Ints) -> list[int]:
    begin, end = (np.array([row[at] for row in rows], np.int64) * MS for at in (2, 3))
    rank = np.zeros(len(rows), np.int64)
    comm = Table({"rank": rank, "op": Strings.of([row[0] for row in rows]), "start_ns": begin,
                  "enqueue_ns": called * MS, "end_ns": end})  # fmt: skip
    axis = axis_over(1, begin, end)
    assert axis is not None
    found = awaited_since(comm, rank, begin, end, axis, comm.strings("op").equals("Send"))
    return [int(value) for value in (found + axis.origin_ns) // MS]


def test_a_receive_is_awaited_since_what_the_program_does_before_it() -> None:
    called = np.array([row[1] for row in MIDDLE])
    assert since(MIDDLE, called) == [0, 45, 89, 130, 130, 430]


def test_a_receive_that_ends_during_computation_is_not_awaited() -> None:
    rows = [("Send", 0, 20, 21), ("Send", 1, 70, 71), ("Recv", 2, 5, 60), ("Send", 3, 90, 91)]
    assert since(rows, np.array([0, 1, 2, 3])) == [20, 70, 60, 90]


def test_a_receive_during_which_its_rank_calls_nothing_was_not_posted_ahead() -> None:
    rows = [("Recv", 0, 0, 40), ("Send", 60, 60, 90), ("Recv", 80, 80, 99), ("Send", 120, 120, 121)]
    assert since(rows, np.array([row[1] for row in rows])) == [0, 60, 80, 120]


def test_a_host_that_waits_for_a_receive_does_not_stop_its_device() -> None:
    """Its calls pause until the data is there, and the send before it starts only then."""
    rows = [("Send", 2, 2, 4), ("Recv", 40, 40, 80), ("Send", 82, 120, 121), ("Recv", 90, 90, 140),
            ("Send", 142, 180, 181)]  # fmt: skip
    assert since(rows, np.array([row[1] for row in rows])) == [2, 40, 120, 120, 180]


def test_a_send_shows_when_its_data_was_computed_however_long_it_takes() -> None:
    """The receiver is late, so the first send lasts until 60, and another one begins meanwhile."""
    rows = [("Send", 1, 20, 60), ("Recv", 2, 2, 50), ("Send", 3, 45, 46)]
    assert since(rows, np.array([row[1] for row in rows]))[1] == 20


def test_a_send_behind_another_send_says_nothing_about_its_data() -> None:
    """The second send waits for the first until 100, while its rank waits in the receive."""
    rows = [
        ("Send", 0, 10, 100),
        ("Send", 1, 100, 110),
        ("Recv", 2, 50, 105),
        ("Send", 3, 140, 141),
    ]
    assert since(rows, np.array([0, 1, 2, 3]))[2] == 50


def test_without_host_calls_the_ends_give_the_order() -> None:
    begin = np.array([row[2] for row in MIDDLE])
    assert since(MIDDLE, begin) == [0, 45, 89, 130, 130, 430]


@pytest.fixture(scope="module")
def pipeline() -> Window:
    """Eight ranks in four stages, two replicas, without tensor parallelism."""
    scenario = Scenario(ranks=8, steps=16, seed=5, parallelism=Parallelism(pp=4))
    return clean(simulate(scenario).window)[0]


def own_ms(window: Window) -> Ints:
    found = own_time(window, timeline(window)).total[:, 6:]
    return np.round(np.nanmedian(found, axis=1) / 1e6).astype(np.int64)


def test_own_time_between_operators_is_that_of_the_phases(pipeline: Window) -> None:
    comm = {name: column for name, column in pipeline.tables["comm_ops"].columns.items()
            if name != "blocked_ns"}  # fmt: skip
    steps = pipeline.tables["steps"]
    bare = Window(pipeline.job, {"steps": steps, "comm_ops": Table(comm)})
    true, found = own_ms(pipeline), own_ms(bare)
    later = slice(2, None)
    assert np.abs(found[later] / true[later] - 1).max() < 0.05
    assert (found[:2] < true[:2]).all(), "nothing shows when the first stage's last passes end"


def test_nobody_knows_own_time_without_host_calls(pipeline: Window) -> None:
    comm = {name: column for name, column in pipeline.tables["comm_ops"].columns.items()
            if name not in ("blocked_ns", "enqueue_ns")}  # fmt: skip
    bare, _ = clean(Window(pipeline.job, {"steps": pipeline.tables["steps"],
                                          "comm_ops": Table(comm)}))  # fmt: skip
    found = own_time(bare, timeline(bare))
    assert not found.phases
    assert "posted ahead" in found.skipped[0].why


def tensor_and_sharded(columns: str) -> Window:
    """Rank 1 computes for 60 ms, the others for 20 ms, before they reduce activations in `tp`.

    While rank 0 waits there for rank 1, its device gathers the next parameters on another stream.
    """
    pairs = {"tp": ((0, 1), (2, 3)), "dp": ((0, 2), (1, 3))}
    groups = tuple(ProcessGroup(f"{kind}-{at}", kind, pair)
                   for kind, both in pairs.items() for at, pair in enumerate(both))  # fmt: skip
    steps, rows = [], []
    for step in range(12):
        begin = START + step * 100 * MS
        for rank in range(4):
            steps.append((rank, step, begin, 100 * MS))
            reached = begin + (60 if rank == 1 else 20) * MS
            left = begin + (61 if rank < 2 else 21) * MS
            for name, group, start, end in (
                ("AllReduce", f"tp-{rank // 2}", reached, left),
                ("AllGather", f"dp-{rank % 2}", begin + 40 * MS, begin + 42 * MS),
                ("ReduceScatter", f"dp-{rank % 2}", begin + 80 * MS, begin + 100 * MS),
            ):
                seq = 2 * step + (name == "ReduceScatter")
                known = {"enqueue_ns": begin, "start_ns": start, "end_ns": end}
                rows.append((rank, step, group, seq, name, *map(known.get, columns.split())))
    job = Job("sharded", 4, (Host("h", (0, 1, 2, 3)),), groups=groups)
    comm = a_table(f"rank step group seq op {columns}", rows)
    window = Window(
        job, {"steps": a_table("rank step start_ns duration_ns", steps), "comm_ops": comm}
    )
    return clean(window)[0]


@pytest.mark.parametrize("columns", ["start_ns end_ns", "enqueue_ns start_ns end_ns"])
def test_a_gather_on_another_stream_does_not_show_that_a_rank_computes(columns: str) -> None:
    own = own_ms(tensor_and_sharded(columns))
    assert own[1] - own[0] == 60 - 20 - 2, "the gather of 2 ms is no own time of rank 1 either"


@pytest.mark.parametrize(("lasts", "beside"), [(90, True), (40, False)])
def test_time_in_sends_shows_whether_they_block(lasts: int, beside: bool) -> None:
    """Nineteen short sends hold nothing, and a long one may hold another operator's begin."""
    first = np.array([*range(0, 200, 10), 240], np.int64)
    last = np.where(first == 190, first + lasts, first + 1)
    comm = Table({"op": Strings.of([*(["Send"] * 20), "AllReduce"])})
    assert (sends_beside_work(comm, first * MS, last * MS)[:20] == beside).all()


def test_sends_that_pass_beside_computing_cover_no_work() -> None:
    """A ring of four: each rank sends, computes for 30 ms while that goes on, and then receives."""
    ring, steps, rows = (0, 1, 2, 3), [], []
    for step in range(12):
        begin = START + step * 100 * MS
        for rank in ring:
            steps.append((rank, step, begin, 100 * MS))
            late = 0 if rank == 1 else 20
            for op, peer, start, end in (("Send", (rank + 1) % 4, 10, 10 + 50 + late),
                                         ("Recv", (rank - 1) % 4, 40, 60),
                                         ("Send", (rank + 1) % 4, 90, 100)):  # fmt: skip
                rows.append((rank, step, "cp-0", 2 * step + (start > 80), op, peer,
                             begin, begin + start * MS, begin + end * MS))  # fmt: skip
    job = Job("ring", 4, (Host("h", ring),), groups=(ProcessGroup("cp-0", "cp", ring),))
    window, _ = clean(Window(job, {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "comm_ops": a_table("rank step group seq op peer enqueue_ns start_ns end_ns", rows),
    }))  # fmt: skip
    own = np.nanmedian(own_time(window, timeline(window)).total, axis=1)
    assert (own == 80 * MS).all()
