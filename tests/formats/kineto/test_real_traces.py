"""Real traces of six jobs: read whole, and broken down as HolisticTraceAnalysis does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.diagnose.views.breakdown import Breakdown, breakdown
from stepscope.formats.kineto import Reading, read, recognise
from stepscope.window import NULL, Ints, Table, Window

FOLDER = Path(__file__).parents[3].parent / "shared/traces/hta-single-rank"
SETS = sorted(path for path in FOLDER.glob("*") if path.is_dir())
US = 1000
ROUNDED_AWAY = {"ns_resolution_trace": 0.5, "nccl_parser_config": 0.03}
"""HTA rounds starts up and ends down to whole microseconds: what of its figures that moves."""

pytestmark = pytest.mark.skipif(not SETS, reason="the real traces are not here")


@pytest.fixture(scope="module", params=SETS, ids=lambda path: path.name)
def case(request: pytest.FixtureRequest) -> tuple[Path, Reading]:
    return request.param, read(request.param / next(request.param.glob("*.gz")))


def reference(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "reference-hta-0.6.1.json").read_text())
    return found


def chosen_by_hta(window: Window) -> Table:
    """Kernels that the host launched before the last step."""
    kernels = window.tables["kernels"]
    launch, step = kernels.ints("enqueue_ns"), kernels.ints("step")
    last = launch[step == window.tables["steps"].ints("step").max()].min()
    return kernels.take((launch != NULL) & (launch < last))


def rounded_by_hta(kernels: Table, base_ns: int) -> Table:
    """Times in microseconds since the trace's base, as float64, rounded to whole ones."""

    def us(name: str) -> Any:
        since = kernels.ints(name) - base_ns
        return since // US + since % US / US

    def ns(whole: Any) -> Ints:
        return np.asarray(whole).astype(np.int64) * US + base_ns

    start = ns(np.ceil(us("start_ns")))
    end = ns(np.floor(us("start_ns") + kernels.ints("duration_ns") / US))
    return (
        kernels.with_column("start_ns", start)
        .with_column("duration_ns", np.maximum(end - start, 0))
        .with_column("enqueue_ns", ns(np.ceil(us("enqueue_ns"))))
    )


def broken_down(window: Window, kernels: Table) -> Breakdown:
    found = breakdown(Window(window.job, {"kernels": kernels}))
    assert found is not None
    return found


def totals(found: Breakdown) -> dict[str, float]:
    part = {n: int(found.ranks.ints(f"{n}_ns")[0]) / US for n in
            ("idle", "compute", "exposed", "copy", "duration", "hidden")}  # fmt: skip
    return {
        "idle_time(us)": part["idle"], "compute_time(us)": part["compute"],
        "non_compute_time(us)": part["exposed"] + part["copy"],
        "kernel_time(us)": part["duration"],
    }  # fmt: skip


def base_of(folder: Path) -> int:
    return 1711964646000000000 if folder.name == "nccl_parser_config" else 0


def test_totals_are_those_of_hta(case: tuple[Path, Reading]) -> None:
    folder, reading = case
    kernels = chosen_by_hta(reading.window)
    found = broken_down(reading.window, rounded_by_hta(kernels, base_of(folder)))
    want = reference(folder)["temporal_breakdown_us"][0]
    assert totals(found) == pytest.approx({k: want[k] for k in totals(found)}, rel=0.01)
    overlap = reference(folder)["comm_comp_overlap"][0]["comp_comm_overlap_pctg"]
    hidden, exposed = (int(found.ranks.ints(n)[0]) for n in ("hidden_ns", "exposed_ns"))
    if overlap is not None:
        assert 100 * hidden / (hidden + exposed) == pytest.approx(overlap, rel=0.01, abs=0.01)


def test_without_rounding_only_the_rounding_differs(case: tuple[Path, Reading]) -> None:
    folder, reading = case
    got = totals(broken_down(reading.window, chosen_by_hta(reading.window)))
    want = reference(folder)["temporal_breakdown_us"][0]
    limit = ROUNDED_AWAY.get(folder.name, 0.01)
    assert got == pytest.approx({name: want[name] for name in got}, rel=limit)
    assert got["kernel_time(us)"] == pytest.approx(want["kernel_time(us)"], rel=0.0001)


def test_everything_is_there(case: tuple[Path, Reading]) -> None:
    folder, reading = case
    tables = reading.window.tables
    steps = tables["steps"].ints("step").tolist()
    assert steps[:-1] == reference(folder)["profiler_steps"]
    assert list(reading.window.ranks) == reference(folder)["ranks"]
    assert recognise(folder)
    phases = tables["phases"].strings("phase")
    assert {"forward-compute", "backward-compute"} <= set(phases.values)
    for name in ("forward-compute", "backward-compute"):
        of_steps = tables["phases"].take(phases.equals(name)).ints("step")
        assert set(of_steps.tolist()) == set(steps)
    assert (np.diff(tables["kernels"].ints("start_ns")) >= 0).all()


def test_all_steps_have_equally_many_kernels(case: tuple[Path, Reading]) -> None:
    """Two traces begin with kernels that were launched before: these belong to no step."""
    step = case[1].window.tables["kernels"].ints("step")
    counts = np.bincount(step[step != NULL] - step[step != NULL].min())
    assert len(set(counts.tolist())) == 1
    early = {"negative_queue_length_values_check": 872, "trace_diff_test": 614}
    assert (step == NULL).sum() == early.get(case[0].name, 0)


def test_arguments_of_collectives_where_they_were_recorded() -> None:
    comm = read(FOLDER / "nccl_parser_config" / "nccl_data.json.gz").window.tables["comm_ops"]
    assert set(comm.strings("group").values) == {"world-0"}
    reduce = comm.take(comm.strings("op").equals("AllReduce"))
    assert reduce.ints("bytes").tolist() == [
        4 * n for n in [2049000, 7875584, 6563840, 6637568, 2431040]
    ] * 3  # fmt: skip
