"""Who waited for whom: the critical path of a step, and the step played again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from stepscope.diagnose.graph.critical_path import OWN, Path, critical_path, shares
from stepscope.diagnose.graph.replay import Replay
from stepscope.diagnose.graph.step_graph import StepGraph, step_graph
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.timeline import timeline
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Ints, Strings, Table, Window, joined

from .jobs import START, Fault, a_job, a_table, put

US = 1000
Piece = tuple[int, int, int, str]


@dataclass
class Job2D:
    """Ranks work and meet in random groups, one event after the other; `own` is what each did."""

    ranks: int
    seed: int
    rows: list[tuple[object, ...]] = field(default_factory=list)
    phases: list[tuple[object, ...]] = field(default_factory=list)
    begin: Ints = field(init=False)
    clock: Ints = field(init=False)
    after: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of each rank the operator that it left last, and when."""
    meetings: list[tuple[tuple[int, ...], list[int], int, dict[int, tuple[int, int]]]] = field(
        default_factory=list
    )

    def play(self, meetings: int) -> Window:
        random = np.random.default_rng(self.seed)
        self.begin = START + random.integers(0, 50, self.ranks) * US
        self.clock = self.begin.copy()
        groups: dict[tuple[int, ...], int] = {}
        for _ in range(meetings):
            size = int(random.integers(2, self.ranks + 1))
            members = tuple(sorted(random.choice(self.ranks, size, replace=False).tolist()))
            seq = groups[members] = groups.get(members, -1) + 1
            self._meet(members, seq, random)
        for rank in range(self.ranks):
            self._work(rank, int(random.integers(100, 1000)) * US)
        steps = [(rank, 0, int(self.begin[rank]), int(self.clock[rank] - self.begin[rank]))
                 for rank in range(self.ranks)]  # fmt: skip
        known = tuple(ProcessGroup(name(one), "dp", one) for one in groups)
        job = Job("met", self.ranks, (Host("host-000", tuple(range(self.ranks))),), {}, known)
        return Window(job, {
            "steps": a_table("rank step start_ns duration_ns", steps),
            "phases": a_table("rank step phase start_ns duration_ns", self.phases),
            "comm_ops": a_table("rank step group seq op peer start_ns end_ns enqueue_ns",
                                self.rows),
        })  # fmt: skip

    def _meet(self, members: tuple[int, ...], seq: int, random: np.random.Generator) -> None:
        for rank in members:
            self._work(rank, int(random.integers(100, 1000)) * US)
        arrive = [int(self.clock[rank]) for rank in members]
        end = max(arrive) + int(random.integers(50, 200)) * US
        before = {rank: self.after.get(rank, (-1, int(self.begin[rank]))) for rank in members}
        self.meetings.append((members, arrive, end, before))
        for rank, came in zip(members, arrive, strict=True):
            row = (rank, 0, name(members), seq, "AllReduce", -1, came, end, came)
            self.rows.append(row)
            self.clock[rank] = end
            self.after[rank] = (len(self.meetings) - 1, end)

    def _work(self, rank: int, lasted: int) -> None:
        self.phases.append((rank, 0, "work", int(self.clock[rank]), lasted))
        self.clock[rank] += lasted

    def path(self) -> list[Piece]:
        """Walked backwards by hand: rank, begin, end, what."""
        rank = int(np.argmax(self.clock))
        number, since = self.after.get(rank, (-1, int(self.begin[rank])))
        found: list[Piece] = [(rank, since, int(self.clock[rank]), "own")]
        while number >= 0:
            members, arrive, end, before = self.meetings[number]
            found.append((rank, max(arrive), end, name(members)))
            rank = members[arrive.index(max(arrive))]
            number, since = before[rank]
            found.append((rank, since, max(arrive), "own"))
        return found

    def done_without(self, rank: int, saved: dict[int, int]) -> int:
        """When the last rank is done if one needs less before some of its meetings."""
        end: dict[int, int] = {-1: 0}
        for number, (members, arrive, old, before) in enumerate(self.meetings):
            came = []
            for one, at in zip(members, arrive, strict=True):
                since = end[before[one][0]] if before[one][0] >= 0 else before[one][1]
                came.append(since + at - before[one][1] - saved.get(number, 0) * (one == rank))
            end[number] = max(came) + old - max(arrive)
        last = {one: self.after.get(one, (-1, int(self.begin[one]))) for one in range(self.ranks)}
        return max(
            (end[number] if number >= 0 else since) + int(self.clock[one]) - since
            for one, (number, since) in last.items()
        )


def name(members: tuple[int, ...]) -> str:
    return "dp-" + "-".join(map(str, members))


def graph_of(window: Window) -> StepGraph:
    graph = step_graph(window, timeline(window), np.array([0]))
    assert graph is not None
    return graph


def pieces(path: Path) -> list[Piece]:
    group = path.graph.comm.strings("group")
    names = ["own" if row == OWN else group[row] or "" for row in path.row.tolist()]
    ranks = path.graph.lanes.row(path.lane).tolist()
    return list(zip(ranks, path.begin_ns.tolist(), path.end_ns.tolist(), names, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_the_path_is_what_a_backward_walk_finds(seed: int) -> None:
    played = Job2D(5, seed)
    window = played.play(meetings=12)
    assert pieces(critical_path(graph_of(window))) == played.path()


@pytest.mark.parametrize("seed", range(20))
def test_phases_do_not_matter_where_nothing_else_runs(seed: int) -> None:
    played = Job2D(4, seed)
    window = played.play(meetings=9)
    alone = Window(window.job, {k: v for k, v in window.tables.items() if k != "phases"})
    assert pieces(critical_path(graph_of(alone))) == played.path()


@pytest.mark.parametrize("seed", range(20))
def test_a_step_played_again(seed: int) -> None:
    """As recorded if no rank saves time, and by hand if one does."""
    played = Job2D(5, seed)
    graph = graph_of(played.play(meetings=12))
    replay = Replay.of(graph)
    nothing, at_end = np.zeros(graph.op.size, np.int64), np.zeros(5, np.int64)
    assert replay.finish_ns(nothing, at_end).tolist() == graph.finish_ns.tolist()
    saved = {number: 60 * US for number, one in enumerate(played.meetings) if 2 in one[0]}
    less = np.where(graph.lane == 2, 60 * US, 0)
    assert int(replay.finish_ns(less, at_end).max()) == played.done_without(2, saved)


def test_work_beside_an_operator_is_not_held_up_by_it() -> None:
    """Gradients are exchanged while rank 0 goes on: its path is its own until the second."""
    rows = [(rank, 0, "dp-0", seq, "AllReduce", -1, START + come * US, START + end * US, START)
            for seq, arrivals, end in ((0, (100, 150), 200), (1, (900, 500), 1000))
            for rank, come in enumerate(arrivals)]  # fmt: skip
    window = two_ranks(rows, [(0, 0, "backward-compute", START, 900 * US),
                              (1, 0, "backward-compute", START, 500 * US)])  # fmt: skip
    assert pieces(critical_path(graph_of(window))) == [
        (0, START + 900 * US, START + 1000 * US, "dp-0"), (0, START, START + 900 * US, "own"),
    ]  # fmt: skip


def two_ranks(rows: Sequence[tuple[object, ...]], phases: Sequence[tuple[object, ...]]) -> Window:
    job = Job("two", 2, (), {}, (ProcessGroup("dp-0", "dp", (0, 1)),))
    steps = [(rank, 0, START, 1000 * US) for rank in (0, 1)]
    return Window(job, {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns", phases),
        "comm_ops": a_table("rank step group seq op peer start_ns end_ns enqueue_ns", rows),
    })  # fmt: skip


def test_an_end_that_is_noted_late_was_waited_for_all_the_same() -> None:
    """Rank 0 goes on when the slow rank 1 has come; who notes the end comes 1 ms after that."""
    ms = 1000 * US
    rows, phases = [], []
    for rank, busy in ((0, 10), (1, 100)):
        end = START + 102 * ms
        rows.append((rank, 0, "dp-0", 0, "AllReduce", -1, START + busy * ms, end + ms,
                     START + busy * ms))  # fmt: skip
        wait = (102 - busy) * ms
        phases += [(rank, 0, "backward-compute", START, 102 * ms, wait),
                   (rank, 0, "optimizer", end, 5 * ms, 0)]  # fmt: skip
    window = put(
        two_ranks(rows, []),
        phases=a_table("rank step phase start_ns duration_ns wait_ns", phases),
        steps=a_table("rank step start_ns duration_ns",
                      [(rank, 0, START, 107 * ms) for rank in (0, 1)]),
    )  # fmt: skip
    graph = graph_of(window)
    assert graph.last.tolist() == [0, 1]
    done = Replay.of(graph).finish_ns(np.array([0, 90 * ms]), np.zeros(2, np.int64))
    assert ((done - START) / ms).tolist() == [17.0, 17.0]


def test_clocks_that_disagree_lead_in_no_circle() -> None:
    """By these each of two operators ended before the other began, on one rank or the other."""
    rows = [(0, 0, "dp-0", 0, "AllReduce", -1, START, START + 300 * US, START),
            (1, 0, "dp-0", 0, "AllReduce", -1, START + 600 * US, START + 800 * US, START),
            (0, 0, "dp-0", 1, "AllReduce", -1, START + 500 * US, START + 900 * US, START),
            (1, 0, "dp-0", 1, "AllReduce", -1, START, START + 400 * US, START)]  # fmt: skip
    graph = graph_of(two_ranks(rows, []))
    nothing, at_end = np.zeros(4, np.int64), np.zeros(2, np.int64)
    assert critical_path(graph).lane.size > 0
    assert Replay.of(graph).finish_ns(nothing, at_end).tolist() == graph.finish_ns.tolist()


def test_a_culprits_part_of_the_path_is_evidence() -> None:
    slow = Fault((2,), "backward-compute", 0, times=1.5)
    job = a_job(faults=[slow], steps=60)
    (verdict,) = diagnose(job).verdicts
    (seen,) = [one for one in verdict.evidence if one.method == "critical-path"]
    assert "backward-compute" in seen.detail
    assert isinstance(seen.values["part"], float)
    assert seen.values["part"] >= 0.7


def test_time_that_two_phases_share_counts_once() -> None:
    """A thread loads the next batch beside the passes."""
    job = a_job(4, 20)
    phases = job.tables["phases"]
    beside = phases.take(phases.strings("phase").equals("forward-compute"))
    names = Strings(np.zeros(len(beside), np.int32), ("data-load",))
    window = put(job, phases=joined([phases, beside.with_column("phase", names)]))
    path = critical_path(graph_of(window))
    assert sum(one.part for one in shares(window, path)) == pytest.approx(1.0)


def test_what_a_bubble_swallows_costs_nothing() -> None:
    """Rank 1 is slow, and everybody waits for rank 0, which is slower, in another group."""
    played = Job2D(3, 0)
    window = played.play(meetings=0)
    lasting = {0: 1000, 1: 600, 2: 100}
    rows = [(rank, 0, "dp-0-1-2", 0, "AllReduce", -1, START + at * US, START + 1100 * US, START)
            for rank, at in lasting.items()]  # fmt: skip
    phases = [(rank, 0, "work", START, at * US) for rank, at in lasting.items()]
    steps = [(rank, 0, START, 1100 * US) for rank in lasting]
    job = replace(window.job, groups=(ProcessGroup("dp-0-1-2", "dp", (0, 1, 2)),))
    graph = graph_of(Window(job, {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns", phases),
        "comm_ops": a_table("rank step group seq op peer start_ns end_ns enqueue_ns", rows),
    }))  # fmt: skip
    less = np.where(graph.lane == 1, 500 * US, 0)
    assert (Replay.of(graph).finish_ns(less, np.zeros(3, np.int64)) == graph.finish_ns).all()
    assert [one.rank for one in shares(Window(job), critical_path(graph))] == [0, None]


def test_without_ends_there_is_no_path() -> None:
    job = a_job(steps=12)
    comm = job.tables["comm_ops"]
    calls = Table({name: column for name, column in comm.columns.items()
                   if name not in ("start_ns", "end_ns")})  # fmt: skip
    window = put(job, comm_ops=calls)
    assert step_graph(window, timeline(window), np.array([3])) is None


def test_a_device_behind_its_host_waits_for_nothing_that_is_called_later() -> None:
    """Rank 0 computes from 10 to 90 ms. Its host has called what comes next, and rank 1 comes into
    that at 40 ms: rank 0 is held up by nothing then."""
    ms = 1000 * US
    rows = [
        (0, "tp-0", 0, 0, 0, 10),
        (1, "tp-0", 0, 0, 0, 10),
        (0, "tp-0", 1, 5, 90, 92),
        (1, "tp-0", 1, 5, 90, 92),
        (0, "cp-0", 0, 20, 30, 42),
        (1, "cp-0", 0, 40, 40, 42),
    ]
    groups = tuple(ProcessGroup(f"{kind}-0", kind, (0, 1)) for kind in ("tp", "cp"))
    window = Window(Job("behind", 2, (Host("host-000", (0, 1)),), {}, groups), {
        "steps": a_table("rank step start_ns duration_ns",
                         [(rank, 0, START, 100 * ms) for rank in (0, 1)]),
        "comm_ops": a_table("rank step group seq op peer enqueue_ns start_ns end_ns", [
            (rank, 0, group, seq, "AllReduce", -1, *(START + time * ms for time in times))
            for rank, group, seq, *times in rows]),
    })  # fmt: skip
    graph = graph_of(window)
    assert graph.before[2] == 0
    assert graph.arrive_ns[2] - graph.since_ns[2] == 80 * ms
