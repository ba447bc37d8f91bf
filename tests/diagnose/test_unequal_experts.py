"""Ranks with experts differ lastingly by nature; only who is beyond that is accused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from stepscope.diagnose.decide.experts import excused
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.views.own_time import OwnTime
from stepscope.trace import ProcessGroup
from stepscope.window import Ints

from .jobs import MS

RANKS, STEPS = 16, 40


def a_suspect(row: int) -> Suspect:
    return Suspect(row, "moe_experts", ("moe_experts",), 0, STEPS, 0.3, 20.0, 5.0, 30 * MS, 1.3, 1)


def with_levels(levels: list[float], experts: bool = True) -> Observed:
    """Each rank's experts take 80 ms times its level in every step."""
    own = 80 * MS * np.array(levels)[None, :, None] * np.ones((1, len(levels), STEPS))
    everybody = np.arange(len(levels))
    line = SimpleNamespace(typical_ns=400 * MS, ranks=everybody, rows=lambda ranks: ranks)
    halves = [ProcessGroup(f"ep-{at}", "ep", tuple(part.tolist()))
              for at, part in enumerate(np.split(everybody, 2))]  # fmt: skip

    def groups(phase: str | None) -> list[Ints]:
        return [everybody]

    return cast(Observed, SimpleNamespace(
        has_experts=experts, line=line, groups=groups,
        own=OwnTime(("moe_experts",), own, own * np.nan),
        window=SimpleNamespace(
            table=lambda name: None, job=SimpleNamespace(groups_of_kind=lambda kind: halves)
        ),
    ))  # fmt: skip


@pytest.mark.parametrize(("level", "ordinary"), [(1.3, True), (2.4, False)])
def test_a_rank_must_be_beyond_what_experts_differ_by(level: float, ordinary: bool) -> None:
    others = np.exp(np.random.default_rng(4).normal(0, 0.15, RANKS - 1))
    (one,) = excused(with_levels([level, *others]), [a_suspect(0)])
    assert one.ordinary == ordinary


def test_a_second_slow_rank_does_not_excuse_the_first() -> None:
    others = np.exp(np.random.default_rng(4).normal(0, 0.15, RANKS - 2))
    job = with_levels([2.4, 2.4, *others])
    assert [one.ordinary for one in excused(job, [a_suspect(0), a_suspect(1)])] == [False, False]


@pytest.mark.parametrize(("times", "ordinary"), [(3.8, False), (1.5, True)])
def test_ranks_that_would_need_more_than_all_tokens_are_slow(times: float, ordinary: bool) -> None:
    """ARGUS, sections 9.1 and 9.5: four ranks of an expert group of eight, and all of a host. To
    each of them, the others show how much experts differ."""
    levels = np.exp(np.random.default_rng(4).normal(0, 0.15, RANKS))
    levels[:4] = times
    found = excused(with_levels([*levels]), [a_suspect(row) for row in range(4)])
    assert all(one.ordinary is ordinary for one in found[1:])


def test_without_experts_nothing_is_excused() -> None:
    job = with_levels([1.3, *np.linspace(0.8, 1.2, RANKS - 1)], experts=False)
    assert not excused(job, [a_suspect(0)])[0].ordinary
