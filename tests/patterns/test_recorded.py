"""Patterns of a real job that torch.profiler recorded during the test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.formats.kineto.rank_trace import read_activity
from stepscope.patterns import Pattern, Patterns, summarize
from tests.patterns import record

SCRIPT = Path(__file__).with_name("record.py")
CLOSE = 0.03
"""Of the window: between what the job measured of itself and beta."""
pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("patterns")
    subprocess.run([sys.executable, str(SCRIPT), str(folder)],
                   check=True, timeout=120, stdout=subprocess.DEVNULL)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def found(recorded: Path) -> Patterns:
    trace = read_activity(recorded / "trace.json.gz")
    assert trace.steps == (0, record.STEPS - 1)
    return summarize(trace.activity, trace.span)


def only(found: Patterns, function: str) -> Pattern:
    (one,) = [one for one in found.rows if function in one.function]
    return one


def line_of(text: str) -> int:
    lines = SCRIPT.read_text().splitlines()
    return next(at for at, line in enumerate(lines, 1) if text in line)


def test_slow_code_of_the_user_has_its_place_and_its_share(recorded: Path, found: Patterns) -> None:
    measured = json.loads((recorded / "measured.json").read_text())
    sleep, pairs, reads = (only(found, one) for one in ("sleep", "pairs", "method read"))
    for pattern, part in ((sleep, "sleep"), (pairs, "pairs"), (reads, "read")):
        share = measured[part] / found.span.length_ns
        assert pattern.beta == pytest.approx(share, abs=CLOSE), part
        assert pattern.kind == "python" and pattern.thread is None
    assert sleep.caller is not None and sleep.caller.endswith(
        f"record.py:{line_of('def __getitem__')} __getitem__"
    )
    assert reads.caller is not None and reads.caller.endswith(
        f"record.py:{line_of('def lookup')} lookup"
    )
    assert pairs.location is not None and pairs.location.endswith(
        f"record.py:{line_of('def pairs')}"
    )
    assert pairs.caller is not None and pairs.caller.endswith(
        f"record.py:{line_of('def train')} train"
    )
    assert (sleep.calls, pairs.calls) == (record.STEPS * record.BATCH, record.STEPS)


def test_all_of_the_window_is_somebodys(found: Patterns) -> None:
    assert sum(one.beta for one in found.rows) + found.left_out_beta == pytest.approx(1, abs=CLOSE)
    assert any(one.kind == "operator" for one in found.rows)
