"""A real job on two hosts that becomes slower while it runs, with checkpoints and evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.triggers import Case, run

from stepscope.store.reader import JobReader

pytestmark = pytest.mark.real


def test_a_function_that_begins_to_be_slow_is_profiled_on_all_ranks(tmp_path: Path) -> None:
    """Nothing opens before it is: neither at checkpoints nor at evaluations."""
    found = run(
        Case("slower", "function", -1, ("--slow-from", "320", "--steps", "530")),
        ranks=4,
        keep=tmp_path,
    )
    assert (found.orders, found.windows, found.ranks, found.troubles) == (1, 1, 4, ())
    assert found.equal, "the same first and last step on all ranks"
    assert found.detected_s is not None and found.detected_s > 0
    patterns = JobReader(str(tmp_path / "slower")).refresh().tables["patterns"]
    functions = patterns.strings("function")
    assert any("preprocess" in str(functions[row]) for row in range(len(patterns)))
