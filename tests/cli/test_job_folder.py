"""The command on a real job folder, written here as any other program would write it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepscope.cli import main

T0 = 1_766_000_000_000_000_000
MS = 1_000_000
STEPS, RANKS, ONSET = 120, 8, 60


def write_job(folder: Path, slow_rank: int | None) -> None:
    """One DP job of two hosts; from step 60 on the slow rank computes twice as long."""
    hosts = [{"name": "host-0", "ranks": [0, 1, 2, 3]}, {"name": "host-1", "ranks": [4, 5, 6, 7]}]
    folder.mkdir()
    job = {"schema": 1, "job_id": "real", "world_size": RANKS, "hosts": hosts}
    (folder / "job.json").write_text(json.dumps(job))
    steps: list[dict[str, object]] = []
    phases: list[dict[str, object]] = []
    now = T0
    for step in range(STEPS):
        compute = [100 * MS + (step * 7919 + r * 104729) % 997 * 1000 for r in range(RANKS)]
        if slow_rank is not None and step >= ONSET:
            compute[slow_rank] *= 2
        whole = max(compute) + 5 * MS
        for rank, own in enumerate(compute):
            where = {"rank": rank, "step": step, "microbatch": -1}
            steps.append({"rank": rank, "step": step, "start_ns": now, "duration_ns": whole})
            work = {"phase": "backward-compute", "start_ns": now, "duration_ns": own}
            wait = {"phase": "dp-allreduce", "start_ns": now + own, "duration_ns": whole - own}
            phases += [{**where, **work, "waits": False}, {**where, **wait, "waits": True}]
        now += whole
    for name, rows in (("steps", steps), ("phases", phases)):
        (folder / name).mkdir()
        pq.write_table(pa.Table.from_pylist(rows), folder / name / "all.parquet")


def test_a_slow_rank_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_job(tmp_path / "job", slow_rank=5)
    assert main(["diagnose", str(tmp_path / "job"), "--json"]) == 1
    verdict = json.loads(capsys.readouterr().out)["verdicts"][0]
    assert verdict["ranks"] == [5]
    assert verdict["hosts"] == ["host-1"]


def test_a_healthy_job_is_silence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_job(tmp_path / "job", slow_rank=None)
    assert main(["diagnose", str(tmp_path / "job")]) == 0
    assert capsys.readouterr().out.startswith("healthy: no culprit found in 8 ranks")


def test_the_page_of_a_real_job(tmp_path: Path) -> None:
    write_job(tmp_path / "job", slow_rank=5)
    page = tmp_path / "report.html"
    assert main(["diagnose", str(tmp_path / "job"), "--html", str(page)]) == 1
    assert "rank 5" in page.read_text(encoding="utf-8")


def test_a_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(tmp_path / "nope")]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("stepscope: ")
    assert shown.err.count("\n") == 1
