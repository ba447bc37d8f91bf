"""A job that was recorded on a GPU (an H200, two NCCL ranks): rank 1 works 0.1 s more in each step
from step 60 on, before its forward pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.diagnose.run import diagnose
from stepscope.report.json import to_json
from stepscope.store import JobReader

JOB = Path(__file__).parent / "recorded" / "gpu-two-ranks"
DELAYED_NS = 100 * 0.1e9
"""What all steps together lost, on each of two ranks."""


def test_the_delayed_rank_is_named_with_its_function_onset_and_cost() -> None:
    (verdict,) = to_json(diagnose(JobReader(str(JOB)).read()))["verdicts"]
    assert verdict["ranks"] == [1]
    assert verdict["steps"] == [60, 159]
    assert "_work_for" in verdict["function"]
    assert verdict["lost_rank_ns"] == pytest.approx(2 * DELAYED_NS, rel=0.1)


def test_operators_have_times_of_the_device_and_kernels_are_summarized() -> None:
    window = JobReader(str(JOB)).read()
    operators, kernels = window.table("comm_ops"), window.table("kernel_summaries")
    assert operators is not None and kernels is not None
    assert (operators.ints("end_ns") > operators.ints("start_ns")).all()
    assert (operators.strings("algorithm").codes >= 0).all()
    assert int(kernels.ints("count").sum()) == 46_367
