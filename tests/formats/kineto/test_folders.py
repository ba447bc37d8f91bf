"""Traces in folders: nested, named by torch, of several windows or runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli import main
from stepscope.errors import SourceError
from stepscope.formats.kineto import read, recognise

from .traces import BASE_NS, gpu_events, gpu_step, trace, write

OTHERS: dict[str, Any] = {
    "a browser": {"metadata": {"source": "DevTools"}, "traceEvents": [
        {"ph": "M", "cat": "__metadata", "name": "thread_name", "pid": 1, "tid": 1, "ts": 0},
        {"ph": "X", "cat": "devtools.timeline", "name": "RunTask", "pid": 1, "ts": 5, "dur": 9}]},
    "TensorBoard": {"displayTimeUnit": "ns", "traceEvents": [
        {"ph": "X", "pid": 1, "tid": 3, "ts": 1.0, "dur": 2.0, "name": "fusion.1"}, {}]},
    "VizTracer": {"viztracer_metadata": {"version": "0.16.3"}, "traceEvents": [
        {"ph": "X", "pid": 1, "tid": 1, "ts": 1.5, "dur": 2.5, "name": "f (a.py)", "cat": "FEE"}]},
    "speedscope": {"profiles": [{"events": [{"type": "O", "at": 0}]}]},
    "a list": [1, 2, 3],
    "rows": [{"a": 1}, {"b": 2}],
    "settings": {"name": "x", "version": "1"},
}  # fmt: skip


def named(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(path, content)


@pytest.mark.parametrize("names", [
    ("host1/rank0.json.gz", "host2/rank1.json.gz"),
    ("a/b/rank_0/trace.json", "a/b/rank_1/trace.json"),
])  # fmt: skip
def test_folders_below_are_searched(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        named(tmp_path, name, trace(gpu_events(), rank=None))
    named(tmp_path, ".cache/rank9.json", trace(gpu_events()))
    assert recognise(tmp_path)
    reading = read(tmp_path)
    assert (reading.window.ranks, reading.problems) == ((0, 1), ())


def test_files_of_the_same_name_are_distinguished(tmp_path: Path) -> None:
    named(tmp_path, "host1/rank0.json", trace(gpu_events()))
    named(tmp_path, "host2/rank0.json", trace(gpu_events()))
    with pytest.raises(SourceError, match=r"host1/rank0.json and host2/rank0.json are both of ra"):
        read(tmp_path)


def test_windows_of_one_process_have_one_rank(tmp_path: Path) -> None:
    """What `tensorboard_trace_handler` writes: of two processes two windows each."""
    for process in ("gpu7_4711", "gpu7_4712"):
        for step, time in ((3, 1712345678901), (9, 1712345690123)):
            name = f"log/{process}.{time}.pt.trace.json"
            named(tmp_path, name, trace(gpu_step(step, step * 1000.0), rank=None))
    reading = read(tmp_path)
    steps = reading.window.tables["steps"]
    assert steps.ints("rank").tolist() == [0, 0, 1, 1]
    assert steps.ints("step").tolist() == [3, 9, 3, 9]
    assert len(reading.problems) == 4
    assert reading.problems[0].startswith(
        "log/gpu7_4711.1712345678901.pt.trace.json: it has no rank"
    )


def test_found_steps_of_later_windows_are_counted_on(tmp_path: Path) -> None:
    later = [{**one, "ts": one["ts"] + 50_000} for one in gpu_events(3, marked=False)]
    named(tmp_path, "rank0.1.json", trace(gpu_events(3, marked=False)))
    named(tmp_path, "rank0.2.json", trace(later))
    tables = read(tmp_path).window.tables
    assert tables["steps"].ints("step").tolist() == [0, 1, 2, 3, 4, 5]
    assert tables["comm_ops"].ints("step").tolist() == [0, 1, 2, 3, 4, 5]


def test_two_runs_are_not_two_windows(tmp_path: Path) -> None:
    tomorrow = [{**one, "ts": one["ts"] + 86400e6} for one in gpu_events()]
    named(tmp_path, "log/monday_rank0.json", trace(gpu_events()))
    named(tmp_path, "log/tuesday_rank0.json", trace(tomorrow))
    with pytest.raises(SourceError, match="both of rank 0, of the same steps: two runs"):
        read(tmp_path)


@pytest.mark.parametrize("other", OTHERS)
def test_json_of_other_tools(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: str
) -> None:
    path = named(tmp_path, "alone/rank0.json", OTHERS[other])
    assert main(["diagnose", str(path.parent)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and str(path) in said


def test_json_of_other_tools_beside_traces_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named(tmp_path, "rank0.json", trace(gpu_events()))
    for at, other in enumerate(OTHERS):
        named(tmp_path, f"notes/{at}.json", OTHERS[other])
    assert main(["diagnose", str(tmp_path), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["ranks"] == 1
    assert "notes/0.json" in shown.err


def test_nothing_but_damaged_traces_below(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = named(tmp_path, "log/gpu7_4711.1712345678901.pt.trace.json", b"")
    assert main(["diagnose", str(tmp_path)]) == 2
    assert f"{path}: the file is empty" in capsys.readouterr().err


DAY_US = 86_400e6


def test_traces_of_two_jobs_are_not_one(tmp_path: Path) -> None:
    for rank, days in ((0, 0), (1, 3)):
        events = [{**one, "ts": one["ts"] + days * DAY_US} for one in gpu_events()]
        named(tmp_path, f"rank{rank}.json", trace(events, rank))
    again = [{**one, "ts": one["ts"] + 5 * DAY_US} for one in gpu_step(90, 9000.0)]
    named(tmp_path, "rank0.again.json", trace(again, 0))
    with pytest.raises(
        SourceError, match=r"rank1.json of rank 1 and rank0.again.json of rank 0 .* 48 h"
    ):
        read(tmp_path)


@pytest.mark.parametrize("late_us", [0.0, 700.0])
def test_a_clock_may_be_hours_off_if_collectives_show_it(tmp_path: Path, late_us: float) -> None:
    """Both ranks leave each of six collectives together, on clocks that are three hours apart and
    drift; or, of two runs, now and then a little later."""
    for rank in (0, 1):
        own = [{**one, "ts": one["ts"] * (1 + 2e-5 * rank) + rank * DAY_US / 8}
               for one in gpu_events(6)]  # fmt: skip
        later = [one["name"] for one in own if "ProfilerStep" in one["name"]][1::2]
        second = {int(one.partition("#")[2]) for one in later} if rank else set()
        moved = [{**one, "ts": one["ts"] + late_us * (step in second)}
                 for at, one in enumerate(own) for step in (5 + at * 6 // len(own),)]  # fmt: skip
        named(tmp_path, f"rank{rank}.json", trace(moved, rank))
    if late_us:
        with pytest.raises(SourceError, match="two jobs"):
            read(tmp_path)
    else:
        assert any("3 hours apart" in one for one in read(tmp_path).problems)


def test_windows_of_the_same_ranks_may_lie_days_apart(tmp_path: Path) -> None:
    for rank in (0, 1):
        for step, days in ((3, 0), (900, 3)):
            events = gpu_step(step, step * 1000.0 + days * DAY_US)
            named(tmp_path, f"rank{rank}.{days}.json", trace(events, rank))
    assert read(tmp_path).window.tables["steps"].ints("step").tolist() == [3, 900, 3, 900]


def test_a_file_that_was_cut_off_has_the_others_base(tmp_path: Path) -> None:
    for rank in (0, 1):
        named(tmp_path, f"rank{rank}.json", trace(gpu_events(), rank, baseTimeNanoseconds=BASE_NS))
    cut = {"distributedInfo": {"rank": 1, "world_size": 2}, "traceEvents": gpu_events()}
    named(tmp_path, "rank1.json", json.dumps(cut)[:-40].encode())
    reading = read(tmp_path)
    starts = reading.window.tables["steps"].ints("start_ns")
    assert starts[0] == starts[2]
    assert any("taken from the other files" in problem for problem in reading.problems)
