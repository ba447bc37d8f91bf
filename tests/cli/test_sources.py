"""`stepscope diagnose` on what PyTorch's own tools wrote, by somebody who only has a folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli import main
from stepscope.formats import walking

from .recordings import write_dumps, write_traces

Capture = pytest.CaptureFixture[str]


def verdict_of(source: Path, capsys: Capture) -> Any:
    """The only verdict."""
    assert main(["diagnose", str(source), "--json"]) == 1
    [verdict] = json.loads(capsys.readouterr().out)["verdicts"]
    return verdict


def complaint(source: Path | str, capsys: Capture, *options: str) -> str:
    """What a command that could not be done said: one line, and nothing on stdout."""
    assert main(["diagnose", str(source), *options]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("stepscope: ")
    assert shown.err.count("\n") == 1
    assert str(source) in shown.err
    return shown.err


@pytest.mark.parametrize("ending", [".json", ".pt.trace.json.gz"])
def test_traces_name_the_slow_rank(tmp_path: Path, capsys: Capture, ending: str) -> None:
    verdict = verdict_of(write_traces(tmp_path / "traces", slow_rank=2, ending=ending), capsys)
    assert (verdict["ranks"], verdict["cause"]) == ([2], "compute")
    assert verdict["phase"] == "backward-compute"


def test_traces_of_equal_ranks_are_healthy(tmp_path: Path, capsys: Capture) -> None:
    assert main(["diagnose", str(write_traces(tmp_path / "traces"))]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("healthy: no culprit found in 4 ranks, steps 3-8\n")
    assert "Where an average step goes" in shown.out
    assert shown.err == ""


def test_a_trace_of_one_rank_is_diagnosed(tmp_path: Path, capsys: Capture) -> None:
    folder = write_traces(tmp_path / "traces", ranks=1)
    assert main(["diagnose", str(folder / "rank0.json")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("healthy: no culprit found in 1 rank")
    assert "Where an average step goes" in shown
    assert "Last arrivals" not in shown, "nobody to compare with"


def test_dumps_name_the_missing_rank(tmp_path: Path, capsys: Capture) -> None:
    verdict = verdict_of(write_dumps(tmp_path / "dumps", absent=1), capsys)
    assert (verdict["kind"], verdict["ranks"], verdict["victims"]) == ("hang", [1], 3)


def test_a_single_dump_is_read(tmp_path: Path, capsys: Capture) -> None:
    folder = write_dumps(tmp_path / "dumps", absent=1)
    assert verdict_of(folder / "nccl_trace_rank_0", capsys)["kind"] == "hang"


def test_a_hang_comes_before_slowness(tmp_path: Path, capsys: Capture) -> None:
    """Where a folder holds both, the dumps are read, and it says so."""
    folder = write_traces(tmp_path / "both", slow_rank=2)
    write_dumps(folder, absent=1)
    assert main(["diagnose", str(folder), "--json"]) == 1
    shown = capsys.readouterr()
    [verdict] = json.loads(shown.out)["verdicts"]
    assert (verdict["kind"], verdict["ranks"]) == ("hang", [1])
    assert shown.err.count("\n") == 1
    assert "4 profiler traces left out" in shown.err


def test_a_folder_of_other_things(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 64)
    (tmp_path / "notes.txt").write_text("nothing to see here")
    said = complaint(tmp_path, capsys)
    assert "profiler traces" in said and "Flight Recorder" in said, "what it could have been"


def test_an_empty_folder(tmp_path: Path, capsys: Capture) -> None:
    assert "the folder is empty" in complaint(tmp_path, capsys)


@pytest.mark.parametrize("ranks", [1, 2])
def test_empty_files_are_said_to_be_empty(tmp_path: Path, capsys: Capture, ranks: int) -> None:
    for rank in range(ranks):
        (tmp_path / f"rank{rank}.json").touch()
    said = complaint(tmp_path, capsys)
    assert "rank0.json" in said and "empty: nothing was written" in said
    assert "Flight Recorder" not in said, "nobody knows what they should have been"
    assert "is empty" in complaint(tmp_path / "rank0.json", capsys)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b", b"{}", b"[]", b'{"a": [', b"\x80\x02}q."])
@pytest.mark.parametrize("name", ["rank0.json", "rank0.json.gz", "nccl_trace_rank_0", "some.bin"])
def test_files_that_are_not_what_they_seem(
    tmp_path: Path, capsys: Capture, name: str, content: bytes
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(content)
    complaint(tmp_path / "in", capsys)
    complaint(tmp_path / "in" / name, capsys)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_damaged_rank_is_named_and_the_others_are_judged(
    tmp_path: Path, capsys: Capture, share: float
) -> None:
    folder = write_traces(tmp_path / "traces", slow_rank=2)
    whole = (folder / "rank3.json").read_bytes()
    (folder / "rank3.json").write_bytes(whole[: int(len(whole) * share)])
    assert main(["diagnose", str(folder), "--json"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["verdicts"][0]["ranks"] == [2]
    assert "rank3.json" in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path, capsys: Capture) -> None:
    folder = write_traces(tmp_path / "traces", ranks=1)
    (folder / "rank0.json").chmod(0)
    complaint(folder, capsys)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "no/such/folder"])
def test_names_that_nothing_can_have(tmp_path: Path, capsys: Capture, name: str) -> None:
    assert main(["diagnose", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("write", [write_traces, write_dumps])
def test_a_recording_cannot_be_followed(tmp_path: Path, capsys: Capture, write: Any) -> None:
    assert "leave out --follow" in complaint(write(tmp_path / "it"), capsys, "--follow")


def test_the_folder_above_is_named_for_what_lies_below(tmp_path: Path, capsys: Capture) -> None:
    """Traces lie one folder deeper where a script makes a folder per run."""
    write_traces(tmp_path / "runs" / "monday")
    shutil.copytree(tmp_path / "runs" / "monday", tmp_path / "runs" / "tuesday")
    assert "monday" in complaint(tmp_path / "runs", capsys)


def test_nothing_was_named(capsys: Capture) -> None:
    """`stepscope diagnose "$UNSET"` is not about the current folder."""
    assert main(["diagnose", ""]) == 2
    assert "the folder name is empty" in capsys.readouterr().err


def test_a_file_of_a_job_folder(tmp_path: Path, capsys: Capture) -> None:
    recording = write_traces(tmp_path / "traces")
    assert main(["import", str(recording), "--store", str(tmp_path / "store")]) == 0
    capsys.readouterr()
    [file] = (tmp_path / "store" / "traces" / "steps").rglob("*.parquet")
    assert "to diagnose a job, name its folder" in complaint(file, capsys)


def test_only_files_with_contents_are_read(tmp_path: Path, capsys: Capture) -> None:
    """A pipe keeps a reader waiting for ever, and so do some files below /proc, of size 0."""
    os.mkfifo(tmp_path / "trace_rank_0.json")
    complaint(tmp_path, capsys)
    complaint(tmp_path / "trace_rank_0.json", capsys)
    complaint("/proc/self/fdinfo", capsys)
    complaint("/proc/self/maps", capsys)
    complaint("/proc", capsys)


def test_a_folder_of_everything_is_no_recording(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walking, "MOST_FILES", 3)
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("x")
    assert "has more than 3 files" in complaint(tmp_path, capsys)
