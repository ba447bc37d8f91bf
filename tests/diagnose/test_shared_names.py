"""Communicators that a recorder calls by one name: `tp` for all tensor parallel groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.run import diagnose
from stepscope.simulate import Scenario, simulate
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.scenario import Parallelism
from stepscope.trace import Job, ProcessGroup
from stepscope.window import Strings, Window

from .jobs import MS, START, a_table, put

LAYOUTS = [Parallelism(tp=2, pp=2), Parallelism(tp=4), Parallelism(pp=4)]


def by_kind(job: Window) -> Window:
    """The job whose operators have the kind of their group as its name, and that lists none."""
    comm = job.tables["comm_ops"]
    kinds = {one.id: one.kind for one in job.job.groups}
    groups = comm.strings("group")
    names = [kinds.get(name, name) for name in groups.values]
    values = tuple(dict.fromkeys(names))
    codes = np.array([values.index(name) for name in names], np.int32)[groups.codes]
    bare = replace(job.job, groups=(), parallelism={}, schedule=None)
    return put(Window(bare, job.tables), comm_ops=comm.with_column("group", Strings(codes, values)))


def of_kind(window: Window, *kinds: str) -> set[tuple[int, ...]]:
    return {one.ranks for one in window.job.groups_of_kind(*kinds)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_groups_of_one_name_are_told_by_who_leaves_together(layout: Parallelism) -> None:
    scenario = Scenario(ranks=16, steps=12, parallelism=layout, detail="normal")
    job = simulate(scenario).window
    found = clean(by_kind(job))[0]
    assert of_kind(found, "tp") == of_kind(job, "tp")
    assert of_kind(found, "pp") == of_kind(job, "pp")
    named = set(found.tables["comm_ops"].strings("group").values)
    assert {one.id for one in found.job.groups} <= named


def test_a_slow_rank_is_found_though_all_groups_of_a_kind_have_one_name() -> None:
    fault = parse_fault("gpu_slow:rank=5,factor=1.5,from=8")
    scenario = Scenario(ranks=16, steps=30, parallelism=LAYOUTS[0], faults=(fault,),
                        detail="normal")  # fmt: skip
    job = by_kind(simulate(scenario).window)
    operators = Window(job.job, {name: job.tables[name] for name in ("steps", "comm_ops")})
    assert [one.ranks for one in diagnose(operators).verdicts] == [(5,)]


def calls(groups: list[tuple[int, ...]], ahead_ms: tuple[int, ...]) -> list[tuple[object, ...]]:
    """Thirty-two reductions of these groups, all named `dp`; they take turns in being late."""
    rows: list[tuple[object, ...]] = []
    for seq in range(32):
        for at, ranks in enumerate(groups):
            begin = START + (seq * 20 + 7 * ((seq + at) % 2)) * MS
            for rank in ranks:
                own = begin + ahead_ms[rank] * MS
                rows.append((rank, 0, "dp", seq, "AllReduce", own, own, own + 5 * MS))
    return rows


COLUMNS = "rank step group seq op enqueue_ns start_ns end_ns"


def test_clocks_that_differ_do_not_divide_a_group() -> None:
    table = a_table(COLUMNS, calls([(0, 1, 2, 3)], (0, 0, 90, 90)))
    window = clean(Window(Job("clocks", 4), {"comm_ops": table}))[0]
    assert window.tables["comm_ops"].strings("group").values == ("dp",)


def test_clocks_that_differ_do_not_hide_that_there_are_two_groups() -> None:
    table = a_table(COLUMNS, calls([(0, 2), (1, 3)], (0, 0, 90, 90)))
    window = clean(Window(Job("clocks", 4), {"comm_ops": table}))[0]
    assert of_kind(window, "dp") == {(0, 2), (1, 3)}


def test_a_name_that_is_listed_twice_means_the_rank_s_own_group() -> None:
    table = a_table(COLUMNS, calls([(0, 1), (2, 3)], (0, 0, 0, 0)))
    listed = (ProcessGroup("dp", "dp", (0, 1)), ProcessGroup("dp", "dp", (2, 3)))
    window = clean(Window(Job("listed", 4, groups=listed), {"comm_ops": table}))[0]
    groups, rank = (
        window.tables["comm_ops"].strings("group"),
        window.tables["comm_ops"].ints("rank"),
    )
    members = {one.id: one.ranks for one in window.job.groups}
    assert members == {"dp/0": (0, 1), "dp/1": (2, 3)}
    assert {(str(groups[at]), int(rank[at])) for at in range(len(rank))} == {
        (name, one) for name, ranks in members.items() for one in ranks
    }
