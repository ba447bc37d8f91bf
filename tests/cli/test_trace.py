"""`stepscope trace` as somebody calls it who wants to see all ranks in Perfetto."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.report import perfetto

from .recordings import write_dumps, write_traces
from .test_job_folder import write_job

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return write_traces(tmp_path / "traces", slow_rank=2)


def drawn(path: Path) -> set[str]:
    """The ranks that are processes of a trace, and what steps there are."""
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    return {found.decode() for found in re.findall(rb"(?<=[\x00-\x1f])(?:rank|step) \d+", text)}


def refused(capsys: Capture, *arguments: str | Path) -> str:
    """One line that says why, and nothing was written."""
    assert main(["trace", *map(str, arguments)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("stepscope: ")
    assert shown.err.count("\n") == 1
    return shown.err


def test_all_ranks_in_the_current_folder(
    traces: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["trace", "traces"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("stepscope: wrote traces.perfetto-trace.gz: 4 ranks, ")
    assert "https://ui.perfetto.dev" in said
    ranks, steps = {f"rank {n}" for n in range(4)}, {f"step {n}" for n in range(3, 9)}
    assert drawn(tmp_path / "traces.perfetto-trace.gz") == ranks | steps


def test_a_part_of_it(traces: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "part.perfetto-trace"
    choice = ["--ranks", "0,2-3", "--steps", "4-5"]
    assert main(["trace", str(traces), "--out", str(out), *choice]) == 0
    assert drawn(out) == {"rank 0", "rank 2", "rank 3", "step 4", "step 5"}
    assert "3 ranks" in capsys.readouterr().err


def test_only_what_matters(tmp_path: Path) -> None:
    """The culprit, two of its peers, who else is on the path, and the longest of the steps."""
    traces = write_traces(tmp_path / "traces", slow_rank=2, ranks=8)
    out = tmp_path / "few.perfetto-trace"
    assert main(["trace", str(traces), "--out", str(out), "--focus"]) == 0
    ranks = {one for one in drawn(out) if one.startswith("rank")}
    steps = {one for one in drawn(out) if one.startswith("step")}
    assert {"rank 1", "rank 2", "rank 3"} <= ranks
    assert len(ranks) < 8
    assert 2 <= len(steps) <= 3
    assert main(["trace", str(traces), "--out", str(out), "--focus", "--ranks", "0"]) == 0
    assert {"rank 0", *steps} <= drawn(out)
    assert not drawn(out) & {"rank 1", "rank 3"}


def test_what_matters_of_a_healthy_job_is_an_ordinary_step(tmp_path: Path) -> None:
    write_job(tmp_path / "job", slow_rank=None)
    out = tmp_path / "few.perfetto-trace"
    assert main(["trace", str(tmp_path / "job"), "--out", str(out), "--focus"]) == 0
    assert len([one for one in drawn(out) if one.startswith("step")]) == 3


def test_job_folders_and_dumps_too(tmp_path: Path) -> None:
    write_job(tmp_path / "job", slow_rank=1)
    write_dumps(tmp_path / "dumps", absent=1)
    for name, ranks in (("job", 8), ("dumps", 4)):
        out = tmp_path / f"{name}.gz"
        assert main(["trace", str(tmp_path / name), "--out", str(out)]) == 0
        assert {f"rank {n}" for n in range(ranks)} <= drawn(out)


def test_an_older_file_is_replaced(traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "it.gz"
    out.write_text("an older one")
    assert main(["trace", str(traces), "--out", str(out)]) == 0
    assert "rank 3" in drawn(out)
    assert sorted(tmp_path.iterdir()) == [out, traces]


@pytest.mark.parametrize("ranks", ["x", "1-", "-1", "3-1", "1:3", "9" * 20, "0,,x"])
def test_invalid_ranks(traces: Path, capsys: Capture, ranks: str) -> None:
    assert "write numbers and ranges, such as 0,8-15" in refused(capsys, traces, f"--ranks={ranks}")


@pytest.mark.parametrize("steps", ["x", "5-4", "1-2,4-5"])
def test_invalid_steps(traces: Path, capsys: Capture, steps: str) -> None:
    assert f"--steps {steps}: write one range of steps" in refused(capsys, traces, "--steps", steps)


def test_a_selection_without_rows(traces: Path, capsys: Capture) -> None:
    assert "no ranks 7-9 in" in refused(capsys, traces, "--ranks", "0,7-9")
    assert "it contains steps 3-8" in refused(capsys, traces, "--steps", "1-2")


@pytest.mark.parametrize(("out", "why"), [(".", "it is a folder"), ("no/it.gz", "no such folder")])
def test_a_file_that_cannot_be_written(
    traces: Path, tmp_path: Path, capsys: Capture, out: str, why: str
) -> None:
    said = refused(capsys, traces, "--out", tmp_path / out)
    assert said.startswith(f"stepscope: cannot write {tmp_path / out}: ")
    assert why in said


def test_a_disk_that_is_full(
    traces: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(scene: object, write: object, drawn: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(perfetto, "draw", full)
    assert "No space left on device" in refused(capsys, traces, "--out", tmp_path / "it.gz")
    assert list(tmp_path.iterdir()) == [traces]


@pytest.mark.parametrize("older", [None, "an older one"])
def test_ctrl_c_leaves_no_part_of_a_file(
    traces: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    older: str | None,
) -> None:
    out = tmp_path / "it.gz"
    if older is not None:
        out.write_text(older)
    before = sorted(tmp_path.iterdir())
    draw = perfetto.draw

    def interrupted(scene: perfetto.Scene, write: object, drawn: object) -> int:
        draw(scene, write, drawn)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(perfetto, "draw", interrupted)
    assert main(["trace", str(traces), "--out", str(out)]) == 130
    assert sorted(tmp_path.iterdir()) == before
    assert older is None or out.read_text() == older
    assert capsys.readouterr().err == ""


def test_into_a_pipe(traces: Path, tmp_path: Path) -> None:
    """`stepscope trace … --out >(ssh laptop …)`."""
    pipe, got = tmp_path / "pipe", tmp_path / "got"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.write_bytes(pipe.read_bytes()))
    reader.start()
    assert main(["trace", str(traces), "--out", str(pipe)]) == 0
    reader.join()
    assert "rank 3" in drawn(got)
    assert pipe.is_fifo()


def test_a_pipe_whose_reader_leaves(traces: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stepscope.cli", "trace", str(traces), "--out", "/dev/stdout"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(timeout=60) in (2, 128 + signal.SIGPIPE)
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_what_cannot_be_drawn(tmp_path: Path, capsys: Capture, name: str) -> None:
    (tmp_path / "empty").mkdir()
    said = refused(capsys, tmp_path / name, "--out", tmp_path / "it.gz")
    assert str(tmp_path / name) in said
    assert not (tmp_path / "it.gz").exists()
