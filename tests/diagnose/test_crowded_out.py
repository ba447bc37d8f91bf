"""A rank that waits for its processor while a culprit on its host has it is a victim."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.diagnose.decide.echoes import without_crowded_out
from stepscope.diagnose.finding import Cause, Evidence, Slowdown
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.unnamed import BETWEEN
from stepscope.trace import ProcessGroup

from .jobs import a_job, without


def late(rank: int, cause: Cause, computed: float, starved: float, lost_ms: float) -> Slowdown:
    used = Evidence("processor-use", "", {"computed": computed, "starved": starved})
    return Slowdown(
        "argus-l2", cause, "", (rank,), steps=(40, 90), lost_ns=1e6 * lost_ms, supporting=(used,)
    )


NEIGHBOUR = late(2, "host", computed=0.1, starved=0.9, lost_ms=10)


@pytest.mark.parametrize(
    ("culprit", "victims"),
    [
        pytest.param(late(3, "gc", 0.0, 0.0, 40), [(2,)], id="it collects garbage"),
        pytest.param(late(3, "host", 0.9, 0.0, 40), [(2,)], id="it computes"),
        pytest.param(late(3, "data_loading", 0.1, 0.0, 40), [], id="it waits for data"),
        pytest.param(late(3, "gc", 0.0, 0.0, 5), [], id="it costs less"),
        pytest.param(late(3, "host", 0.1, 0.9, 40), [], id="both wait for a processor"),
    ],
)
def test_who_is_late_for_want_of_a_processor(
    culprit: Slowdown, victims: list[tuple[int, ...]]
) -> None:
    kept, explained = without_crowded_out(Observed(a_job(ranks=4)), [NEIGHBOUR, culprit])
    assert [one.ranks for one in explained] == victims
    assert {one.ranks for one in kept} == {(2,), (3,)} - set(victims)
    assert all("rank 3 on its host takes it" in one.decisions[-1].says for one in explained)


@pytest.mark.parametrize(("culprit_ms", "group", "victims"), [
    (40, (2, 3), [(2,)]), (20, (2, 3), []), (40, (1, 3), []),
], ids=["several times as late", "about as late", "of another group"])  # fmt: skip
def test_who_meets_a_culprit_within_passes_is_a_victim_where_only_operators_were_recorded(
    culprit_ms: float, group: tuple[int, ...], victims: list[tuple[int, ...]]
) -> None:
    window = without(a_job(ranks=4, stacks=False), "phases")
    groups = (*window.job.groups, ProcessGroup("ep-0", "ep", group))
    job = Observed(replace(window, job=replace(window.job, groups=groups)))
    assert job.own.phases == (BETWEEN,)
    found = [late(2, "compute", 0.0, 0.0, 10), late(3, "compute", 0.0, 0.0, culprit_ms)]
    _, explained = without_crowded_out(job, found)
    assert [one.ranks for one in explained] == victims
