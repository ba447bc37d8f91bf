"""Jobs whose waiting is hidden: devices timed the phases, and no end of an operator was recorded.

Ranks 0 and 2 are one group, and so are 1 and 3, each on a host with a clock of its own. In every
pass, rank 0 waits for rank 2 in an operator that lasts 100 ms, so that its pass is the longest of
all.
"""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.own_time import OwnTime, own_time
from stepscope.diagnose.views.timeline import timeline
from stepscope.diagnose.views.unnamed import BETWEEN, GAPS, OUTSIDE
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import NULL, Table, Window

from .jobs import MS, START, a_table, put

RANKS, STEPS, STEP_MS = 4, 40, 300
BLOCKING = ["tp", "cp", "ep", "pp", "mp"]
UNRECORDED = ["no operators", "host calls", "others only"]


def a_job(kind: str, phases: str = "waits wait_ns", name: str = "forward-compute") -> Window:
    """Pairs of ranks of one kind of group, and data parallelism across them."""
    pairs = tuple(ProcessGroup(f"{kind}-{at}", kind, (at, at + 2)) for at in (0, 1))
    across = tuple(ProcessGroup(f"dp-{at}", "dp", (at, at + 1)) for at in (0, 2))
    hosts = tuple(Host(f"h{rank}", (rank,)) for rank in range(RANKS))
    job = Job("hidden", RANKS, hosts, groups=(*pairs, *across))
    told: dict[str, object] = {"waits": 1, "wait_ns": NULL, "microbatch": 0}
    columns = phases.split()
    rows, steps = [], []
    for step in range(STEPS):
        begin = START + step * STEP_MS * MS
        for rank in range(RANKS):
            steps.append((rank, step, begin, STEP_MS * MS))
            length = (250 if rank == 0 else 150) * MS
            rows.append((rank, step, name, begin, length, *(told[column] for column in columns)))
            rows.append(
                (
                    rank,
                    step,
                    "mlp",
                    begin + MS,
                    50 * MS,
                    *(0 if column == "waits" else told[column] for column in columns),
                )
            )
    return Window(job, {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table(f"rank step phase start_ns duration_ns {phases}", rows),
    })  # fmt: skip


def operators(kind: str, ended: bool) -> Table:
    """One operator per rank and step, of 100 ms on rank 0 and of none on the others."""
    rows = []
    for step in range(STEPS):
        for rank in range(RANKS):
            at = START + step * STEP_MS * MS + 20 * MS
            end = at + (100 * MS if rank == 0 else MS)
            group = rank // 2 * 2 if kind == "dp" else rank % 2
            rows.append((rank, step, f"{kind}-{group}", step, "AllReduce", -1, at,
                         end if ended else NULL, "done"))  # fmt: skip
    return a_table("rank step group seq op peer enqueue_ns end_ns state", rows)


def recorded(job: Window, kind: str, how: str) -> Window:
    if how == "no operators":
        return job
    ops = operators(kind, ended=False) if how == "host calls" else operators("dp", ended=True)
    return put(job, comm_ops=ops)


def own(job: Window) -> OwnTime:
    return own_time(job, timeline(job))


@pytest.mark.parametrize("how", UNRECORDED)
@pytest.mark.parametrize("kind", BLOCKING)
def test_a_pass_that_may_have_waited_in_unrecorded_operators_is_not_compared(
    kind: str, how: str
) -> None:
    job = recorded(a_job(kind), kind, how)
    assert "forward-compute" not in own(job).phases
    assert "own time of forward-compute" in {one.method for one in own(job).skipped}
    assert not [one for one in diagnose(job).verdicts if one.ranks and not one.is_suspect]


@pytest.mark.parametrize("kind", BLOCKING)
def test_recorded_operators_show_the_waiting(kind: str) -> None:
    job = put(a_job(kind), comm_ops=operators(kind, ended=True))
    found = own(job)
    forward = found.own[found.phases.index("forward-compute")]
    assert np.allclose(forward[0], 150 * MS) and np.allclose(forward[1:], 149 * MS)


@pytest.mark.parametrize("how", UNRECORDED)
@pytest.mark.parametrize("name", ["forward-compute", "train_batch", "fwd"])
def test_phases_of_other_names_may_contain_waiting_if_nobody_says_so(name: str, how: str) -> None:
    for kind in BLOCKING:
        job = recorded(a_job(kind, phases="", name=name), kind, how)
        assert name not in own(job).phases
        assert "mlp" in own(job).phases


def test_the_pass_of_one_microbatch_waits_for_no_other_stage() -> None:
    assert "forward-compute" in own(a_job("pp", phases="microbatch")).phases
    assert "forward-compute" not in own(a_job("tp", phases="microbatch")).phases


def test_without_groups_within_passes_phases_of_other_names_are_compared() -> None:
    assert "train_batch" in own(a_job("dp", phases="", name="train_batch")).phases


@pytest.mark.parametrize("kind", BLOCKING)
def test_time_between_operators_is_unknown_if_others_were_not_recorded(kind: str) -> None:
    tables = {"comm_ops": operators("dp", ended=True), "steps": a_job(kind).tables["steps"]}
    job = Window(a_job(kind).job, tables)
    found = own(job)
    assert BETWEEN not in found.phases or np.isnan(found.own).all()


@pytest.mark.parametrize("kind", BLOCKING)
@pytest.mark.parametrize("column", ["end_ns", "blocked_ns"])
def test_time_in_no_phase_is_unknown_if_it_may_be_waiting(kind: str, column: str) -> None:
    """On a GPU neither is known of an operator: the columns are there, and empty."""
    table = operators(kind, ended=False)
    empty = np.full(len(table), NULL)
    table = table.with_column("start_ns", empty).with_column(column, empty)
    assert not {GAPS, OUTSIDE} & set(own(put(a_job(kind), comm_ops=table)).phases)


def test_time_in_no_phase_is_unknown_if_only_some_moments_of_operators_were_recorded() -> None:
    table = operators("dp", ended=True)
    for share, known in ((1.0, True), (0.1, False)):
        recorded = np.arange(len(table)) < share * len(table)
        ended = table.with_column("end_ns", np.where(recorded, table.ints("end_ns"), NULL))
        ended = ended.with_column("start_ns", np.where(recorded, table.ints("enqueue_ns"), NULL))
        job = put(a_job("dp"), comm_ops=ended)
        assert (GAPS in own(job).phases) is known


@pytest.mark.parametrize("kind", ["tp", "cp", "ep", "mp"])
def test_operators_after_all_passes_tell_nothing_of_those_within(kind: str) -> None:
    """Members of a ring also reduce their gradients; its sends and receives were not recorded."""
    table, job = operators(kind, ended=True), a_job(kind, phases="")
    after = table.ints("enqueue_ns") + 250 * MS
    table = table.with_column("enqueue_ns", after).with_column("end_ns", after + MS)
    assert own(put(job, comm_ops=table)).hidden_phases == {"forward-compute"}
