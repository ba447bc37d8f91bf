"""Traces that torch.profiler records of a real gloo job during the test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.diagnose.prepare.align import align
from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.prepare.matching import match
from stepscope.diagnose.views.breakdown import breakdown
from stepscope.formats.kineto import Reading, read
from stepscope.window import NULL, Table

SCRIPT = Path(__file__).with_name("record.py")
RANKS, STEPS, FEATURES, GATHERED = 2, 4, 32, 5
pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("recorded")
    subprocess.run([sys.executable, str(SCRIPT), str(folder)],
                   check=True, timeout=120, stdout=subprocess.DEVNULL)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def marked(recorded: Path) -> Reading:
    return read(recorded / "marked")


def comm(reading: Reading, op: str) -> Table:
    table = reading.window.tables["comm_ops"]
    return table.take(table.strings("op").equals(op))


def test_ranks_steps_and_group(marked: Reading) -> None:
    assert marked.problems == ()
    assert marked.window.ranks == tuple(range(RANKS))
    assert [(g.id, g.ranks) for g in marked.window.job.groups] == [("world-0", (0, 1))]
    steps = marked.window.tables["steps"]
    assert steps.ints("step").tolist() == [2, 3, 4, 5] * RANKS
    phases = marked.window.tables["phases"].strings("phase")
    for name in ("data-load", "forward-compute", "backward-compute", "optimizer"):
        assert phases.equals(name).sum() == STEPS * RANKS


def test_collectives_with_sizes_times_and_members(marked: Reading) -> None:
    gathers, reduces = comm(marked, "AllGather"), comm(marked, "AllReduce")
    assert gathers.ints("bytes").tolist() == [4 * GATHERED] * STEPS * RANKS
    assert reduces.ints("bytes").tolist() == [4 * (FEATURES + 1)] * STEPS * RANKS
    assert comm(marked, "Send").ints("peer").tolist() == [1] * STEPS
    assert comm(marked, "Recv").ints("peer").tolist() == [0] * STEPS
    for table in (gathers, reduces):
        assert set(table.strings("group").values) == {"world-0"}
        assert (table.ints("enqueue_ns") <= table.ints("start_ns")).all()
        matched = match(table)
        assert sorted(matched.key.tolist()) == sorted(list(range(STEPS)) * RANKS)
    pairs = match(marked.window.tables["comm_ops"])
    assert (pairs.bounds[1:] - pairs.bounds[:-1] == RANKS).all()


def test_nothing_of_it_is_impossible_and_ends_agree(marked: Reading) -> None:
    window, dropped = clean(marked.window)
    assert dropped == ()
    aligned, _, _ = align(window)
    ends = aligned.tables["comm_ops"].ints("end_ns")
    assert (ends != NULL).all()


def test_stacks_name_the_script(marked: Reading) -> None:
    frames = marked.window.tables["stacks"].strings("frames")
    assert any("main (record.py:" in value for value in frames.values)


def test_breakdown_of_a_cpu_job(marked: Reading) -> None:
    found = breakdown(marked.window)
    assert found is not None
    assert (found.ranks.ints("compute_ns") > 0).all()
    assert (found.ranks.ints("exposed_ns") > 0).all()
    assert len(found.steps) == STEPS * RANKS


def test_steps_without_marks(recorded: Path) -> None:
    reading = read(recorded / "unmarked")
    steps = reading.window.tables["steps"]
    assert steps.ints("step").tolist() == list(range(6)) * RANKS
    assert reading.problems == (
        "the traces do not mark their steps; found by Optimizer.step",
    )  # fmt: skip
    reduces = comm(reading, "AllReduce")
    assert len(reduces) == 6 * RANKS
    assert sorted(reduces.ints("step").tolist()) == sorted(list(range(6)) * RANKS)
