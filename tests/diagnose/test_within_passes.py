"""A rank that meets a much slower one within passes is its victim."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.diagnose.decide.echoes import without_victims
from stepscope.diagnose.finding import Cause, Slowdown
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.unnamed import BETWEEN
from stepscope.trace import ProcessGroup

from .jobs import a_job, without


def late(rank: int, lost_ms: float, cause: Cause = "compute") -> Slowdown:
    return Slowdown("argus-l2", cause, "", (rank,), steps=(40, 90), lost_ns=1e6 * lost_ms)


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
    found = [late(2, 10), late(3, culprit_ms)]
    _, explained = without_victims(job, found)
    assert [one.ranks for one in explained] == victims


@pytest.mark.parametrize(("cause", "victims"), [("unknown", [(2,)]), ("host", [])])
def test_so_is_one_whose_device_and_host_take_no_longer(
    cause: Cause, victims: list[tuple[int, ...]]
) -> None:
    """What shows it to be slow is a pass, which holds operators that nobody recorded."""
    window = a_job(ranks=4, stacks=False)
    groups = (*window.job.groups, ProcessGroup("tp-0", "tp", (2, 3)))
    job = Observed(replace(window, job=replace(window.job, groups=groups)))
    _, explained = without_victims(job, [late(2, 10, cause), late(3, 40)])
    assert [one.ranks for one in explained] == victims
