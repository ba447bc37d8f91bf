"""A job is diagnosed by its timeline as by its folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose
from stepscope.simulate import Parallelism, Scenario, parse_fault, simulate
from stepscope.window import Window
from tests.cli.recordings import write_dumps, write_traces

from .written import as_traced

REPLICAS = Parallelism()
PIPELINE = Parallelism(tp=2, pp=2)


def a_job(*faults: str, steps: int = 24, parallelism: Parallelism = REPLICAS) -> Window:
    found = tuple(map(parse_fault, faults))
    return simulate(
        Scenario(ranks=16, steps=steps, faults=found, parallelism=parallelism, seed=3)
    ).window


def said(diagnosis: Diagnosis) -> list[tuple[object, ...]]:
    return [(one.kind, one.cause, one.ranks, one.phase) for one in diagnosis.verdicts]


@pytest.mark.parametrize(
    "fault",
    [
        "gpu_slow:rank=5,factor=1.5,from=12",
        "nic_slow:rank=5,factor=6,from=12",
        "hang:rank=5,from=12",
        "slow_code:from=12,ms=200",
    ],
)
def test_the_same_culprit_cause_and_phase(tmp_path: Path, fault: str) -> None:
    expected, window = as_traced(a_job(fault), tmp_path / "job.perfetto-trace.gz")
    assert expected.verdicts, "the fault is found in the job itself"
    assert said(diagnose(window)) == said(expected)
    assert (window.job.job_id, window.job.world_size) == ("job", 16)


def test_a_pipeline_and_its_groups(tmp_path: Path) -> None:
    job = a_job("missing_recv:rank=12,from=10", steps=16, parallelism=PIPELINE)
    expected, window = as_traced(job, tmp_path / "job.perfetto-trace.gz")
    assert said(diagnose(window)) == said(expected)
    assert expected.state == "hang"


def test_a_healthy_job_stays_healthy(tmp_path: Path) -> None:
    expected, window = as_traced(a_job(), tmp_path / "job.perfetto-trace.gz")
    assert expected.outcome == diagnose(window).outcome == "healthy"


def verdicts(source: Path, capsys: pytest.CaptureFixture[str]) -> list[tuple[object, ...]]:
    assert main(["diagnose", str(source), "--json"]) == 1
    shown = capsys.readouterr()
    assert shown.err == ""
    return [(one["kind"], one["cause"], one["ranks"], one["phase"])
            for one in json.loads(shown.out)["verdicts"]]  # fmt: skip


@pytest.mark.parametrize("ending", [".perfetto-trace", ".perfetto-trace.gz"])
def test_a_timeline_of_profiler_traces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    traces = write_traces(tmp_path / "traces", slow_rank=2)
    out = tmp_path / "out" / f"slow{ending}"
    out.parent.mkdir()
    assert main(["trace", str(traces), "--out", str(out)]) == 0
    capsys.readouterr()
    expected = verdicts(traces, capsys)
    assert verdicts(out, capsys) == verdicts(out.parent, capsys) == expected


def test_a_timeline_of_dumps_has_no_end_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps, out = write_dumps(tmp_path / "dumps", absent=1), tmp_path / "hang.perfetto-trace.gz"
    assert main(["trace", str(dumps), "--out", str(out)]) == 0
    capsys.readouterr()
    [(kind, _, ranks, _)] = verdicts(out, capsys)
    assert (kind, ranks) == ("hang", [1])


def test_a_timeline_becomes_a_job_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = write_traces(tmp_path / "traces", slow_rank=2)
    out = tmp_path / "slow.perfetto-trace.gz"
    assert main(["trace", str(traces), "--out", str(out)]) == 0
    assert main(["import", str(out), "--store", str(tmp_path / "store")]) == 0
    capsys.readouterr()
    assert verdicts(tmp_path / "store" / "slow", capsys) == verdicts(traces, capsys)
