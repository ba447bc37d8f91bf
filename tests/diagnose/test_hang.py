"""Hangs: which rank is to blame, how soon a hang is reported, and when it must not be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.finding import Diagnosis, Verdict
from stepscope.diagnose.run import diagnose, find_hang
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import NULL, Column, Ints, Strings, Table, Window

from .jobs import MS, START, Fault, a_job, a_table, opened, put, until, with_samples, without

SECOND = 1000 * MS
STUCK_AT = 60
CULPRIT = 2


def a_stuck_job(seconds: float, cores: float = 0.9, function: str | None = None) -> Window:
    """Rank 2 does something else in step 60; recorded until others waited for `seconds`."""
    long = Fault((CULPRIT,), "forward-compute", STUCK_AT, STUCK_AT + 1, ms=40_000,
                 function=function)  # fmt: skip
    job = a_job(steps=STUCK_AT + 1, noise=0.05, faults=[long])
    missed = missed_ns(job)
    job = until(job, missed + int(seconds * SECOND))
    return with_samples(job, "cpu_util", lambda rank, time: (
        cores if rank == CULPRIT or time < missed else 0.01))  # fmt: skip


def missed_ns(job: Window) -> int:
    """When the last of the others entered the first operator of the step."""
    comm = job.tables["comm_ops"]
    rows = (comm.ints("step") == STUCK_AT) & (comm.ints("rank") != CULPRIT)
    first = comm.ints("seq") == comm.ints("seq")[rows].min()
    return int(comm.ints("enqueue_ns")[rows & first].max())


def stopped(job: Window) -> Window:
    """Every sample finds rank 2 in state T once the others wait for it."""
    since = missed_ns(job)
    return with_samples(job, "proc_stopped", lambda rank, time: rank == CULPRIT and time > since)


def the_hang(diagnosis: Diagnosis | None) -> Verdict:
    assert diagnosis is not None
    assert diagnosis.state == "hang"
    (verdict,) = diagnosis.verdicts
    assert verdict.kind == "hang"
    return verdict


def test_a_stopped_process_is_named_at_once() -> None:
    job = stopped(a_stuck_job(seconds=2.5))
    for verdict in (the_hang(find_hang(job)), the_hang(diagnose(job))):
        assert (verdict.ranks, verdict.cause, verdict.victims) == ((CULPRIT,), "host", 3)
        assert verdict.steps == (STUCK_AT, STUCK_AT)
        assert verdict.stack[-1] == "forward (model.py:31)"
        assert "rank 2 hangs: 3 ranks wait in AllReduce" in verdict.summary
        assert "kill -CONT" in verdict.advice


def test_a_process_that_stopped_long_before_is_named_when_the_others_arrive() -> None:
    """The timeout begins when the process stopped; processes are sampled once a second here."""
    job = a_stuck_job(seconds=0.1)
    since = missed_ns(job) - 2 * SECOND
    samples = with_samples(job, "proc_stopped", lambda rank, time: rank == CULPRIT and time > since)
    assert the_hang(find_hang(samples)).ranks == (CULPRIT,)


def test_a_rank_sampled_as_stopped_and_running_is_not_stopped_for_long() -> None:
    """Two processes of one rank: one exited, the other replaced it."""
    job = with_samples(stopped(a_stuck_job(seconds=2.5)), "proc_stopped", lambda rank, time: 0)
    assert find_hang(job) is None, "until a moment ago it ran"


def test_a_job_that_was_killed_because_it_hung_still_hung() -> None:
    job = stopped(a_stuck_job(seconds=20))
    killed = missed_ns(job) + 15 * SECOND
    job = with_samples(job, "proc_stopped", lambda rank, time: (
        time > killed or (rank == CULPRIT and time > missed_ns(job))))  # fmt: skip
    assert the_hang(find_hang(job)).ranks == (CULPRIT,)


def test_a_stopped_process_is_no_hang_before_a_step_and_a_half() -> None:
    assert find_hang(stopped(a_stuck_job(seconds=0.05))) is None


def test_a_stopped_process_whose_operator_everyone_entered() -> None:
    """Stopped while its last asynchronous operator was in progress: no rank is absent."""
    job = stopped(a_stuck_job(seconds=2.5))
    comm = job.tables["comm_ops"]
    open_ = comm.ints("seq") == comm.ints("seq").max() - 2
    rows = comm.take(comm.ints("seq") < comm.ints("seq").max() - 2)
    entered = comm.take(open_)
    mine = entered.take(np.array([0]))
    mine = mine.with_column("rank", np.array([CULPRIT]))
    assert the_hang(find_hang(put(job, comm_ops=joined(rows, entered, mine)))).ranks == (CULPRIT,)


def test_before_the_first_step_one_rank_may_prepare_for_long() -> None:
    job = without(a_stuck_job(seconds=30, cores=0.0), "steps")
    comm = job.tables["comm_ops"]
    first = comm.with_column("step", np.zeros(len(comm), np.int64))
    assert find_hang(put(job, comm_ops=first)) is None


def test_calls_with_step_numbers_are_as_good_as_steps() -> None:
    """Counters of the hardware go on for long after operators stopped."""
    job = without(a_stuck_job(seconds=30, cores=0.0), "steps")
    assert the_hang(find_hang(job)).ranks == (CULPRIT,)


def joined(*tables: Table) -> Table:
    columns: dict[str, Column] = {}
    for name, column in tables[0].columns.items():
        if isinstance(column, Strings):
            texts = [t.strings(name)[row] for t in tables for row in range(len(t))]
            columns[name] = Strings.of(texts)
        else:
            columns[name] = np.concatenate([t.ints(name) for t in tables])
    return Table(columns)


@pytest.mark.parametrize(
    ("cores", "function", "silent_s", "hang_s"),
    [
        pytest.param(0.0, None, 4.5, 6.0, id="idle"),
        pytest.param(0.9, None, 9.0, 11.0, id="busy"),
        pytest.param(0.9, "save_checkpoint (train.py:70)", 30.0, None, id="saving"),
        pytest.param(0.0, "evaluate (train.py:60)", 30.0, None, id="evaluating"),
        pytest.param(0.0, "_dynamo_disable.<locals>.wrapper (fsdp.py:30)", 4.5, 6.0, id="in FSDP"),
    ],
)
def test_the_timeout_depends_on_what_the_absent_rank_does(
    cores: float, function: str | None, silent_s: float, hang_s: float | None
) -> None:
    assert find_hang(a_stuck_job(silent_s, cores, function)) is None
    if hang_s is not None:
        verdict = the_hang(find_hang(a_stuck_job(hang_s, cores, function)))
        assert (verdict.ranks, verdict.victims) == ((CULPRIT,), 3)


def test_a_job_with_long_pauses_before_gets_a_longer_timeout() -> None:
    saves = Fault((0,), "optimizer", 30, 31, ms=9_000)
    late = Fault((CULPRIT,), "forward-compute", STUCK_AT, STUCK_AT + 1, ms=60_000)
    job = a_job(steps=STUCK_AT + 1, faults=[saves, late])
    missed = missed_ns(job)
    assert find_hang(until(job, missed + 13 * SECOND)) is None
    assert the_hang(find_hang(until(job, missed + 15 * SECOND))).ranks == (CULPRIT,)


def test_a_job_that_was_started_again_gets_no_longer_timeout() -> None:
    """It was down for a quarter of an hour, and no rank waited in an operator meanwhile."""
    job = without(a_stuck_job(seconds=30, cores=0.0), "hardware", "stacks", "pauses")
    down_ns = 900 * SECOND

    def later(table: Table) -> Table:
        for name in ("start_ns", "enqueue_ns", "end_ns"):
            if table.has(name):
                times = table.ints(name)
                moved = (table.ints("step") >= 30) & (times != NULL)
                table = table.with_column(name, np.where(moved, times + down_ns, times))
        return table

    data = {**vars(job.job), "observed_until_ns": missed_ns(job) + down_ns + 30 * SECOND}
    again = Window(Job(**data), {name: later(one) for name, one in job.tables.items()})
    assert the_hang(find_hang(again)).ranks == (CULPRIT,)


def test_a_hang_that_resolved_itself_is_none() -> None:
    long = Fault((CULPRIT,), "forward-compute", STUCK_AT, STUCK_AT + 1, ms=40_000)
    job = a_job(steps=STUCK_AT + 20, faults=[long])
    assert find_hang(job) is None
    assert diagnose(job).state != "hang"


@pytest.mark.parametrize("cut_ms", [20, 60, 85, 130])
def test_a_job_killed_in_the_middle_is_no_hang(cut_ms: int) -> None:
    job = a_job(steps=60)
    end = int((job.tables["steps"].ints("start_ns")).max()) - cut_ms * MS
    assert diagnose(until(job, end)).state == "healthy"


def test_recording_that_goes_on_after_all_ranks_are_dead_is_no_hang() -> None:
    job = a_job(steps=60)
    end = int((job.tables["steps"].ints("start_ns")).max()) - 40 * MS
    job = until(job, end)
    rows: list[tuple[object, ...]] = []
    for second in range(1, 60):
        time = end + second * SECOND
        rows += [(rank, "host-000", "proc_stopped", time, 1.0) for rank in range(4)]
        rows.append((-1, "host-000", "cpu_util", time, 0.1))
    dead = a_table("rank host metric ts_ns value", rows)
    hardware = job.tables["hardware"]
    names = ("rank", "ts_ns", "value")
    both = {name: np.concatenate([hardware.floats(name) if name == "value" else hardware.ints(name),
                                  dead.floats(name) if name == "value" else dead.ints(name)])
            for name in names}  # fmt: skip
    texts = {name: Strings.of([t.strings(name)[row] for t in (hardware, dead)
                               for row in range(len(t))])
             for name in ("host", "metric")}  # fmt: skip
    assert diagnose(put(job, hardware=Table({**both, **texts}))).state == "healthy"


def test_all_entered_and_none_completed_is_the_network() -> None:
    job = without(a_job(steps=60), "hardware", "stacks")
    comm = job.tables["comm_ops"]
    last = comm.ints("seq") == comm.ints("seq").max()
    job = put(job, comm_ops=opened(comm, last))
    assert find_hang(watched(job, 8)) is None
    verdict = the_hang(find_hang(watched(job, 15)))
    assert (verdict.cause, verdict.ranks) == ("network", ())


def watched(job: Window, seconds: float) -> Window:
    """The job, recorded until this long after the last operator began."""
    last = int(job.tables["comm_ops"].ints("enqueue_ns").max())
    data = {**vars(job.job), "observed_until_ns": last + int(seconds * SECOND)}
    return Window(Job(**data), job.tables)


def test_a_lost_end_of_an_old_operator_is_no_hang() -> None:
    job = a_job(steps=60)
    comm = job.tables["comm_ops"]
    lost = (comm.ints("seq") == 30) & (comm.ints("rank") == 1)
    job = put(job, comm_ops=opened(comm, lost))
    assert find_hang(watched(job, 100)) is None


def test_ranks_with_lost_rows_are_not_blamed() -> None:
    job = without(a_stuck_job(seconds=30), "hardware")
    until_ns = missed_ns(job) + 30 * SECOND
    lost = (CULPRIT, "comm_ops", until_ns - 40 * SECOND, until_ns, 5)
    job = put(job, losses=a_table("rank table start_ns end_ns rows", [lost]))
    verdict = the_hang(find_hang(job))
    assert (verdict.ranks, verdict.cause) == ((), "unknown")
    assert verdict.confidence <= 0.5


def operators(*rows: tuple[int, str, int, str, int, int, int | None]) -> Table:
    """(rank, group, seq, operator, peer, second it began, second it ended or None)."""
    return a_table("rank group seq op peer enqueue_ns end_ns step", [
        (rank, group, seq, op, peer, START + begin * SECOND,
         NULL if end is None else START + end * SECOND, seq)
        for rank, group, seq, op, peer, begin, end in rows
    ])  # fmt: skip


def a_tiny_job(table: Table, until_s: int, groups: tuple[ProcessGroup, ...]) -> Window:
    ranks = tuple(sorted({rank for group in groups for rank in group.ranks}))
    job = Job("tiny", len(ranks), (Host("h", ranks),), groups=groups,
              observed_until_ns=START + until_s * SECOND)  # fmt: skip
    return Window(job, {"comm_ops": table})


PAIR = (ProcessGroup("pp-0", "pp", (0, 1)),)
TWO_GROUPS = (ProcessGroup("tp-0", "tp", (0, 1)), ProcessGroup("dp-0", "dp", (1, 2)))


def test_a_receive_without_a_send() -> None:
    table = operators((0, "pp-0", 0, "Send", 1, 0, 1), (1, "pp-0", 0, "Recv", 0, 0, 1),
                      (1, "pp-0", 1, "Recv", 0, 2, None))  # fmt: skip
    verdict = the_hang(find_hang(a_tiny_job(table, 60, PAIR)))
    assert verdict.ranks == (0,)
    assert verdict.cause in ("code", "unknown")


@pytest.mark.parametrize(("apart", "suspects"), [(False, False), (True, True)])
def test_ranks_of_several_hosts_of_which_nothing_is_known_are_suspects(
    apart: bool, suspects: bool
) -> None:
    """Two never called; one of them may wait for the other in what nobody recorded."""
    world = (ProcessGroup("dp-0", "dp", (0, 1, 2, 3)),)
    table = operators(*((rank, "dp-0", 0, "AllReduce", -1, 0, 1) for rank in range(4)),
                      (0, "dp-0", 1, "AllReduce", -1, 2, None),
                      (1, "dp-0", 1, "AllReduce", -1, 2, None))  # fmt: skip
    job = a_tiny_job(table, 60, world)
    hosts = (Host("h0", (0, 2)), Host("h1", (1, 3))) if apart else (Host("h", (0, 1, 2, 3)),)
    verdict = the_hang(find_hang(replace(job, job=replace(job.job, hosts=hosts))))
    assert verdict.ranks == (2, 3)
    assert verdict.is_suspect == suspects


def test_an_inferred_metric_does_not_show_that_a_process_is_alive() -> None:
    """For processes that cannot be inspected, as in a container, it is the only metric."""
    table = operators((0, "pp-0", 0, "Send", 1, 0, 1), (1, "pp-0", 0, "Recv", 0, 0, 1),
                      (1, "pp-0", 1, "Recv", 0, 2, None))  # fmt: skip
    steps = a_table("rank step start_ns duration_ns", [(r, 0, START, 2 * SECOND) for r in (0, 1)])
    rows = [(rank, "h", "steps_blocked", START + 3 * SECOND, 1.0) for rank in (0, 1)]
    said = a_table("rank host metric ts_ns value", [*rows])
    job = put(a_tiny_job(table, 60, PAIR), steps=steps, hardware=said)
    assert the_hang(find_hang(job)).ranks == (0,)


def test_a_rank_that_waits_in_another_operator_is_a_victim() -> None:
    """Rank 0 waits for 1 in its group, 1 waits for 2 in another: only 2 is the culprit."""
    table = operators((0, "tp-0", 0, "AllReduce", -1, 0, 1), (1, "tp-0", 0, "AllReduce", -1, 0, 1),
                      (2, "dp-0", 0, "AllReduce", -1, 0, 1), (1, "dp-0", 0, "AllReduce", -1, 0, 1),
                      (0, "tp-0", 1, "AllReduce", -1, 2, None),
                      (1, "dp-0", 1, "AllReduce", -1, 2, None))  # fmt: skip
    verdict = the_hang(find_hang(a_tiny_job(table, 60, TWO_GROUPS)))
    assert (verdict.ranks, verdict.victims) == ((2,), 2)


def on_devices(table: Table, *started: int | None) -> Table:
    """When, in seconds, the device of each row's rank reached the operator."""
    times = [NULL if second is None else START + second * SECOND for second in started]
    return table.with_column("start_ns", np.array(times, np.int64))


def test_a_device_that_never_starts_an_operator_that_its_host_called() -> None:
    """Hosts call ahead of their devices: a call is not yet an arrival."""
    table = operators((0, "tp-0", 0, "AllReduce", -1, 0, 1), (1, "tp-0", 0, "AllReduce", -1, 0, 1),
                      (0, "tp-0", 1, "AllReduce", -1, 1, None),
                      (1, "tp-0", 1, "AllReduce", -1, 1, None),
                      (1, "tp-0", 2, "AllReduce", -1, 2, None))  # fmt: skip
    table = on_devices(table, 0, 0, 2, None, None)
    verdict = the_hang(find_hang(a_tiny_job(table, 60, (TWO_GROUPS[0],))))
    assert (verdict.ranks, verdict.cause, verdict.victims) == ((1,), "compute", 1)
    assert "its device never started it" in verdict.summary


def test_a_device_that_waits_in_another_operator_is_absent_and_a_victim() -> None:
    """Rank 1 called both; its device waits in dp-0 for rank 2, and rank 0 for it in tp-0."""
    table = operators((1, "dp-0", 0, "AllReduce", -1, 2, None),
                      (0, "tp-0", 0, "AllReduce", -1, 2, None),
                      (1, "tp-0", 0, "AllReduce", -1, 2, None),
                      (2, "dp-0", 0, "AllReduce", -1, 2, None))  # fmt: skip
    table = on_devices(table, 3, 3, None, None)
    verdict = the_hang(find_hang(a_tiny_job(table, 60, TWO_GROUPS)))
    assert (verdict.ranks, verdict.cause, verdict.victims) == ((2,), "compute", 2)


def test_a_pipeline_s_two_directions_end_out_of_order() -> None:
    """Rank 0 still waits for gradients, though a later send of activations has ended."""
    table = operators((0, "pp-0", 0, "Recv", 1, 2, None), (0, "pp-0", 1, "Send", 1, 3, 4),
                      (1, "pp-0", 0, "Recv", 0, 3, 4))  # fmt: skip
    assert the_hang(find_hang(a_tiny_job(table, 60, PAIR))).ranks == (1,)


def test_a_stalled_send_blocks_devices_and_not_a_kernel() -> None:
    """Rank 1's device waits in a receive whose send has begun; rank 2 waits for rank 1."""
    groups = (ProcessGroup("pp-0", "pp", (0, 1)), ProcessGroup("tp-0", "tp", (1, 2)))
    table = operators((0, "pp-0", 0, "Send", 1, 2, None), (1, "pp-0", 0, "Recv", 0, 2, None),
                      (1, "tp-0", 0, "AllReduce", -1, 2, None),
                      (2, "tp-0", 0, "AllReduce", -1, 2, None))  # fmt: skip
    table = on_devices(table, 3, 3, None, 3)
    verdict = the_hang(find_hang(a_tiny_job(table, 60, groups)))
    assert (verdict.cause, verdict.ranks, verdict.group) == ("network", (), "pp-0")
    assert "no data arrives from rank 0" in verdict.summary


@pytest.mark.parametrize(
    ("innermost", "active", "cause"),
    [
        pytest.param("recv_forward (p2p.py:401)", 0, "unknown", id="posted no receive"),
        pytest.param("synchronize (streams.py:92)", 1, "compute", id="waits for its device"),
        pytest.param("forward (model.py:31)", 0, "host", id="still where ranks always pass"),
        pytest.param("launch (cuda.cpp:88)", 0, "host", id="still in a driver below that"),
        pytest.param("forward (model.py:31)", 1, "code", id="busy there"),
        pytest.param("barter (market.py:5)", 0, "code", id="other code"),
        pytest.param("_next_data (dataloader.py:7)", 0, "data_loading", id="its loader"),
    ],
)
def test_the_stack_of_an_absent_rank_shows_the_cause(
    innermost: str, active: int, cause: str
) -> None:
    job = a_stuck_job(seconds=20)
    stacks = job.tables["stacks"]
    newest = (stacks.ints("rank") == CULPRIT) & (stacks.ints("start_ns") > missed_ns(job))
    frames = stacks.strings("frames")
    texts = [f"{frames[at]};{innermost}" if hit else frames[at] for at, hit in enumerate(newest)]
    changed = stacks.with_column("frames", Strings.of(texts))
    changed = changed.with_column("active", np.where(newest, active, 1))
    verdict = the_hang(find_hang(put(job, stacks=changed)))
    assert (verdict.cause, verdict.ranks) == (cause, (CULPRIT,))


def test_what_a_process_cleans_up_when_somebody_ends_it_says_nothing_of_the_hang() -> None:
    job = a_stuck_job(seconds=20)
    stacks = job.tables["stacks"]
    own = np.flatnonzero((stacks.ints("rank") == CULPRIT)
                         & (stacks.ints("start_ns") > missed_ns(job)))  # fmt: skip
    newest = own[stacks.ints("start_ns")[own].argmax()]
    frames = stacks.strings("frames")
    texts = [frames[at] or "" for at in range(len(frames))]
    texts = [f"{text};_next_data (dataloader.py:7)" if at in own else text
             for at, text in enumerate(texts)]  # fmt: skip
    texts[newest] = "_exitfunc (weakref.py:666);_del_library (library.py:665)"
    changed = stacks.with_column("frames", Strings.of([*texts]))
    changed = changed.with_column("active", np.zeros(len(stacks), np.int64))
    verdict = the_hang(find_hang(put(job, stacks=changed)))
    assert (verdict.cause, verdict.ranks) == ("data_loading", (CULPRIT,))


@pytest.mark.parametrize(
    ("innermost", "standing", "cause", "ranks"),
    [
        ("_wait_batch_p2p (schedules.py:683)", (2, 3), "network", ()),
        ("_wait_batch_p2p (schedules.py:683)", (3,), "host", (2,)),
        ("nap (train.py:9)", (2, 3), "code", (2, 3)),
    ],
)
def test_ranks_that_wait_in_what_was_not_recorded_are_not_to_blame(
    innermost: str, standing: tuple[int, ...], cause: str, ranks: tuple[int, ...]
) -> None:
    """As where a link is gone: those that the others wait for are waiting themselves. If some
    of them do not, these are to blame."""
    absent = (2, 3)
    long = Fault(absent, "forward-compute", STUCK_AT, STUCK_AT + 1, ms=40_000)
    job = a_job(steps=STUCK_AT + 1, noise=0.05, faults=[long])
    comm = job.tables["comm_ops"]
    others = (comm.ints("step") == STUCK_AT) & ~np.isin(comm.ints("rank"), absent)
    missed = int(comm.ints("enqueue_ns")[others].max())
    job = until(job, missed + 20 * SECOND)
    job = with_samples(job, "cpu_util", lambda _, time: 0.9 if time < missed else 0.01)
    stacks = job.tables["stacks"]
    newest = np.isin(stacks.ints("rank"), absent) & (stacks.ints("start_ns") > missed)
    frames = stacks.strings("frames")
    added = newest & np.isin(stacks.ints("rank"), standing)
    texts = [f"{frames[at]};{innermost}" if hit else frames[at] for at, hit in enumerate(added)]
    changed = stacks.with_column("frames", Strings.of(texts))
    changed = changed.with_column("active", np.where(newest, 0, 1))
    verdict = the_hang(find_hang(put(job, stacks=changed)))
    assert (verdict.cause, verdict.ranks) == (cause, ranks)


def test_ranks_that_wait_for_one_another() -> None:
    groups = (ProcessGroup("a", "other", (0, 1)), ProcessGroup("b", "other", (0, 1)))
    table = operators((0, "a", 0, "AllReduce", -1, 1, None), (1, "b", 0, "AllReduce", -1, 1, None))
    verdict = the_hang(find_hang(a_tiny_job(table, 60, groups)))
    assert (verdict.ranks, verdict.cause) == ((), "code")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda ops, size: (["AllGather", *ops[1:]], size), id="operator"),
        pytest.param(lambda ops, size: (ops, [7, *size[1:]]), id="size"),
    ],
)
def test_members_that_call_different_operators(
    change: Callable[[list[str], list[int]], tuple[list[str], list[int]]],
) -> None:
    job = a_job(steps=40)
    comm = job.tables["comm_ops"]
    odd = np.flatnonzero((comm.ints("seq") == 90) & (comm.ints("rank") == 3))
    order = np.concatenate((odd, np.setdiff1d(np.arange(len(comm)), odd)))
    comm = comm.take(order)
    ops, sizes = change(["AllReduce"] * len(comm), [25 << 20] * len(comm))
    comm = comm.with_column("op", Strings.of([*ops])).with_column("bytes", np.array(sizes))
    (verdict,) = diagnose(put(job, comm_ops=comm)).verdicts
    assert (verdict.kind, verdict.cause, verdict.ranks) == ("mismatch", "code", (3,))
    assert verdict.steps == (30, 30)


def test_members_with_different_sequence_numbers_are_no_mismatch() -> None:
    """A recorder that attached late starts to count at a different operator."""
    job = a_job(steps=40)
    comm = job.tables["comm_ops"]
    sizes = np.where(comm.ints("seq") % 3 == 0, 7, 9)
    apart = comm.ints("seq") + (comm.ints("rank") == 1)
    job = put(job, comm_ops=comm.with_column("bytes", sizes).with_column("seq", apart))
    assert not [v for v in diagnose(job).verdicts if v.kind == "mismatch"]


def test_now_is_the_time_that_all_recorders_have_reached() -> None:
    """Rows of the second host arrive late: its rank is not silent, its rows are still missing."""
    job = a_stuck_job(seconds=30, cores=0.0)
    hosts = (Host("host-000", (0, 1, 3)), Host("host-001", (2,)))
    behind = missed_ns(job) + SECOND
    hardware = job.tables["hardware"]
    theirs = hardware.ints("rank") == CULPRIT
    names = Strings(theirs.astype(np.int32), ("host-000", "host-001"))
    job = put(job, hardware=hardware.with_column("host", names))
    tables = {
        name: table.take((table.ints("rank") != CULPRIT) | (told(table) < behind))
        for name, table in job.tables.items()
    }
    assert find_hang(Window(Job("two", 4, hosts, groups=job.job.groups), tables)) is None


def told(table: Table) -> Ints:
    return table.ints(next(name for name in ("ts_ns", "enqueue_ns", "start_ns") if table.has(name)))
