"""Hangs are located to pass, stage and microbatch, in whatever order stages run their passes."""

from __future__ import annotations

import pytest

from stepscope.diagnose.finding import Place, Verdict
from stepscope.diagnose.operators.places import places, stage_of
from stepscope.diagnose.run import diagnose
from stepscope.evaluate.columns import only_tables
from stepscope.report.json import to_json
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.run import simulate
from stepscope.simulate.scenario import Parallelism, Scenario
from stepscope.trace import BACKWARD, FORWARD, WEIGHT, Host, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table


def hang_of(*faults: str, parallelism: Parallelism, ranks: int = 16) -> Verdict:
    """The verdict on a simulated job that hangs in step 12."""
    job = simulate(Scenario(ranks=ranks, steps=14, seed=3, parallelism=parallelism,
                            faults=tuple(map(parse_fault, faults)))).window  # fmt: skip
    (verdict,) = (one for one in diagnose(job).verdicts if one.kind == "hang")
    return verdict


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize(("tp", "microbatch"), [(1, 3), (2, 0), (2, 7)])
@pytest.mark.parametrize(("at", "phase"), [("forward", FORWARD), ("backward", BACKWARD)])
def test_a_kernel_that_does_not_end_is_located_to_its_microbatch(
    at: str, phase: str, tp: int, microbatch: int, chunks: int
) -> None:
    layout = Parallelism(pp=4, tp=tp, chunks=chunks)
    verdict = hang_of(f"hang:rank=6,from=12,at={at},microbatch={microbatch}", parallelism=layout)
    (place,) = verdict.places
    assert (place.rank, place.phase, place.microbatch) == (6, phase, microbatch)
    assert place.stage is not None
    assert place.stage % 4 == 6 // 4
    assert f"pass of microbatch {microbatch} in stage {place.stage}" in verdict.summary


def test_two_ranks_that_hang_are_located_each() -> None:
    verdict = hang_of("hang:rank=6,from=12,at=host,microbatch=3",
                      "hang:rank=9,from=12,at=host,microbatch=5",
                      parallelism=Parallelism(pp=4))  # fmt: skip
    assert [(one.rank, one.microbatch) for one in verdict.places] == [(6, 3), (9, 5)]
    assert "rank 9 in the" in verdict.summary


def test_a_hang_after_a_slowdown_is_located_all_the_same() -> None:
    verdict = hang_of("gpu_slow:rank=2,from=6,factor=2", "hang:rank=6,from=12,at=host,microbatch=3",
                      parallelism=Parallelism(pp=4))  # fmt: skip
    assert [(one.rank, one.microbatch) for one in verdict.places] == [(6, 3)]


def test_a_receive_that_was_never_posted_is_where_the_paper_says() -> None:
    """VenusTrace, case 1: in the forward pass of the third batch."""
    verdict = hang_of("missing_recv:rank=6,microbatch=2,from=12", parallelism=Parallelism(pp=4))
    assert [(one.phase, one.microbatch) for one in verdict.places] == [(FORWARD, 2)]


def test_without_a_pipeline_the_pass_is_named_and_the_loader_is_in_none() -> None:
    verdict = hang_of("hang:rank=3,from=12,at=host,microbatch=0", ranks=4,
                      parallelism=Parallelism(microbatches=1))  # fmt: skip
    (place,) = verdict.places
    assert (place.stage, place.microbatch, place.microbatches) == (None, 0, 1)
    assert verdict.summary.endswith(" pass")
    assert hang_of("stuck_loader:rank=3,from=12", ranks=4, parallelism=Parallelism()).places == ()


def test_a_transfer_that_does_not_move_is_in_no_pass() -> None:
    verdict = hang_of("hang:rank=6,from=12,at=transfer", parallelism=Parallelism(pp=4))
    assert (verdict.cause, verdict.places) == ("network", ())


WAVE = [  # as torch's ZBV, two ranks and microbatches: rank, phase, microbatch in order of time
    (0, FORWARD, 0), (1, FORWARD, 0), (1, FORWARD, 0), (0, FORWARD, 1), (0, FORWARD, 0),
    (0, BACKWARD, 0), (1, FORWARD, 1), (1, FORWARD, 1), (0, WEIGHT, 0), (0, FORWARD, 1),
    (1, BACKWARD, 0), (0, BACKWARD, 1), (1, BACKWARD, 0), (1, WEIGHT, 0), (0, WEIGHT, 1),
    (0, BACKWARD, 0), (1, BACKWARD, 1), (0, WEIGHT, 0),
]  # fmt: skip


def test_any_order_of_passes_will_do_and_a_wave_of_stages_is_recognised() -> None:
    """Rank 1 has stages 1 and 2; in step 3 it ends nothing after its first backward pass."""
    rows = [
        (rank, step, phase, at, START + (100 * step + 2 * place) * MS, MS)
        for step in range(4) for place, (rank, phase, at) in enumerate(WAVE)
        if step < 3 or place < 11
    ]  # fmt: skip
    table = a_table("rank step phase microbatch start_ns duration_ns", rows)
    groups = (ProcessGroup("pp-0", "pp", (0, 1)),)
    job = Window(Job("wave", 2, (Host("h", (0, 1)),), groups=groups), {"phases": table})
    assert places(job, (1,)) == (Place(1, BACKWARD, 1, 0, 2),)
    assert places(job, (0,)) == (Place(0, BACKWARD, 3, 1, 2),)
    assert [stage_of(at, chunk, 4, wave=True) for chunk in (0, 1) for at in (0, 3)] == [0, 3, 7, 4]


def test_the_places_are_in_the_json() -> None:
    job = simulate(Scenario(ranks=16, steps=14, seed=3, parallelism=Parallelism(pp=4), faults=(
        parse_fault("hang:rank=6,from=12,at=host,microbatch=3"),))).window  # fmt: skip
    (verdict,) = to_json(diagnose(job))["verdicts"]
    assert verdict["places"][0]["microbatch"] == 3
    without = diagnose(only_tables(job, "comm_ops", "steps", "stacks"))
    assert all(one.places == () for one in without.verdicts)
