"""Steps that are played side by side are the steps that are played one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepscope.simulate import Scenario, moments
from stepscope.simulate.engine import NEVER, play
from stepscope.simulate.record.moment import Moment
from stepscope.simulate.run import prepare
from tests.simulate.jobs import a_scenario


def steps_of(scenario: Scenario) -> list[Moment]:
    return list(moments.moments(prepare(scenario), scenario.faults))


def one_by_one(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> list[Moment]:
    with monkeypatch.context() as patch:
        patch.setattr(moments, "ROW", 1)
        return steps_of(scenario)


@pytest.mark.parametrize(
    ("faults", "job"),
    [
        (["gpu_slow:rank=3,from=2"], {"tp": 2, "pp": 2}),
        (["cpu_contention:host=host-000,factor=60"], {"tp": 2, "pp": 2}),
        (["few_cores:host=host-000"], {"ep": 4, "kind": "moe"}),
        (["no_overlap:every=3"], {"sharding": "ddp"}),
        (["gpu_slow:rank=3", "hang:rank=5,from=4,at=host"], {"pp": 2, "chunks": 2}),
        ([], {"ranks": 1}),
    ],
)
def test_side_by_side_or_one_by_one_is_the_same(
    faults: list[str], job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = a_scenario(*faults, steps=7, **job)
    together, apart = steps_of(scenario), one_by_one(scenario, monkeypatch)
    assert [one.step for one in together] == [one.step for one in apart]
    for one, other in zip(together, apart, strict=True):
        assert (one.start == other.start).all()
        for name in ("issued", "begin", "end", "done"):
            assert (getattr(one.times, name) == getattr(other.times, name)).all(), (one.step, name)


def test_steps_are_played_again_until_their_beginning_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host this slow is still behind at the end of a step: how late, only that step knows."""
    plays = []

    def counted(*args: Any) -> Any:
        plays.append(args[-1].shape[1])
        return play(*args)

    monkeypatch.setattr("stepscope.simulate.moments.play", counted)
    steps_of(a_scenario(steps=6, tp=2))
    assert plays == [6, 5]
    plays.clear()
    steps_of(a_scenario("cpu_contention:host=host-000,factor=400", steps=6, tp=2))
    assert plays[0] == 6 and len(plays) > 1


def test_a_step_that_never_ends_is_the_last() -> None:
    *before, last = steps_of(a_scenario("hang:rank=2,from=3", steps=9))
    assert [one.step for one in before] == [0, 1, 2]
    assert (last.step, last.finished) == (3, False)
    assert all((one.times.done < NEVER).all() for one in before)


def test_steps_from_the_middle_go_on_from_where_hosts_are() -> None:
    scenario = a_scenario(tp=2, steps=6)
    whole = steps_of(scenario)
    rest = list(moments.moments(prepare(scenario), (), 3, whole[3].start))
    assert np.array_equal(rest[-1].times.done, whole[-1].times.done)
