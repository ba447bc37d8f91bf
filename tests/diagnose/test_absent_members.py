"""Tensor parallel groups of which one member was recorded, as by tools that trace a rank per
group."""

from __future__ import annotations

from dataclasses import replace

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose
from stepscope.simulate import Scenario, simulate
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.scenario import Parallelism
from stepscope.window import Window


def recorded_in_part(slow: int | None) -> Diagnosis:
    """Ranks of whose eight tensor parallel groups the first member of each was recorded."""
    faults = () if slow is None else (parse_fault(f"gpu_slow:rank={slow},factor=1.6"),)
    scenario = Scenario(ranks=32, steps=30, parallelism=Parallelism(tp=4), faults=faults,
                        detail="normal")  # fmt: skip
    whole = simulate(scenario).window
    recorded = tuple(range(0, 32, 4))
    tables = {name: table.take(table.ints("rank") % 4 == 0) for name, table in whole.tables.items()
              if name in ("steps", "phases", "comm_ops")}  # fmt: skip
    return diagnose(Window(replace(whole.job, recorded_ranks=recorded), tables))


def test_a_slow_rank_that_nobody_recorded_makes_its_group_a_suspect() -> None:
    (one,) = recorded_in_part(slow=13).verdicts
    assert one.is_suspect and one.ranks == (12, 13, 14, 15)
    assert one.evidence[0].method == "slow-units"
    assert "only rank 12 of them was recorded" in one.evidence[0].detail
    assert one.lost_fraction is not None and one.lost_fraction > 0.1


def test_a_recorded_member_that_is_slow_itself_is_named_alone() -> None:
    (one,) = recorded_in_part(slow=12).verdicts
    assert not one.is_suspect and one.ranks == (12,)


def test_nobody_is_a_suspect_where_all_groups_are_equal() -> None:
    assert recorded_in_part(slow=None).verdicts == ()
