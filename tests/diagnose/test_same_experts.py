"""Whether a rank is slow in its experts alone or in all it does, and who holds the same experts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.detect.ranks.slowdown import suspect_of
from stepscope.diagnose.explain.elimination import plain_cause
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.trace import ProcessGroup
from stepscope.window import Floats, Window
from tests.diagnose.jobs import Fault, a_job, a_table, both, put

PASSES = ("forward-compute", "backward-compute")
SINCE, STEPS = 100, 200


def a_job_of_experts(slow: tuple[int, ...], phases: tuple[str, ...]) -> Window:
    """Half of each pass is the experts', which take twice as long on slow ranks. No other part of a
    pass was recorded."""
    faults = [Fault(slow, phase, SINCE, times=1.5) for phase in phases]
    job = a_job(8, STEPS, 0.01, faults=faults, stacks=False)
    rows = job.tables["phases"]
    passes = rows.take(rows.strings("phase").equals(*PASSES))
    own = passes.ints("duration_ns") - passes.ints("wait_ns")
    late = np.isin(passes.ints("rank"), slow) & (passes.ints("step") >= SINCE)
    experts = np.where(late, own * 2 // 3, own // 2)
    inner = a_table("rank step phase start_ns duration_ns wait_ns", [
        (*row, "moe_experts", start, lasted, 0) for *row, start, lasted in zip(
            passes.ints("rank").tolist(), passes.ints("step").tolist(),
            passes.ints("start_ns").tolist(), experts.tolist(), strict=True)])  # fmt: skip
    groups = tuple(ProcessGroup(f"ep-{at}", "ep", tuple(range(4 * at, 4 * at + 4)))
                   for at in range(2))  # fmt: skip
    named = replace(job, job=replace(job.job, groups=(*job.job.groups, *groups)))
    return put(named, phases=both(inner, rows))


def test_all_that_hold_experts_with_more_tokens_have_one_verdict() -> None:
    (verdict,) = diagnose(a_job_of_experts((1, 5), PASSES)).verdicts
    assert (verdict.cause, verdict.ranks) == ("load_imbalance", (1, 5))
    assert verdict.phase == "moe_experts"


@pytest.mark.parametrize(
    ("phases", "cause"), [(PASSES, "load_imbalance"), ((*PASSES, "optimizer"), "compute")]
)
def test_a_device_that_is_slow_in_its_optimizer_as_well_has_no_more_tokens(
    phases: tuple[str, ...], cause: str
) -> None:
    job = Observed(a_job_of_experts((1,), phases))
    suspect = suspect_of(job, 1, (SINCE, STEPS), "moe_experts", [None])
    assert plain_cause(job, replace(suspect, phase="moe_experts"))[0] == cause


def test_what_all_ranks_compute_longer_is_not_charged_to_a_slow_one() -> None:
    """From step 130 on all samples are longer; one rank is slow since step 100."""

    def longer(own: Floats) -> Floats:
        own[1:3, :, 130:] *= 1.5
        return own

    slow = Fault((3,), "backward-compute", SINCE, times=1.3)
    own, whole = diagnose(a_job(8, STEPS, 0.01, faults=[slow], edit=longer)).verdicts
    assert (own.ranks, whole.ranks, whole.is_suspect) == ((3,), (), True)
    assert own.lost_fraction == pytest.approx(0.15, abs=0.04)


def test_a_phase_that_is_named_for_copies_between_host_and_device_is_slow_by_them() -> None:
    job = Observed(a_job_of_experts((1,), ("optimizer",)))
    suspect = suspect_of(job, 1, (SINCE, STEPS), "optimizer", [None])
    for phase, cause in (("grads-to-host", "memory_copy"), ("optimizer", "compute")):
        assert plain_cause(job, replace(suspect, phase=phase))[0] == cause
