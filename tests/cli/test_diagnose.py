"""`stepscope diagnose` as scripts and people meet it: streams, exit statuses, files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.cli import main
from tests.cli import fakes

FAKES = Path(__file__).parent / "fakes.py"
Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


def run_alone(*args: str, **env: str) -> Done:
    """In a process of its own, where that matters."""
    return subprocess.run(
        [sys.executable, str(FAKES), *args],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **env},
    )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """In this process: another one takes most of a second to import everything."""
    for name, fake in fakes.modules().items():
        monkeypatch.setitem(sys.modules, name, fake)

    def run(*args: str, **env: str) -> Done:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        status = main(args)
        return Done(args, status, *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("source", "status"),
    [("sample:healthy", 0), ("sample:empty", 2), ("sample:slow_rank", 1), ("sample:hang", 1),
     ("broken:/nowhere", 2), ("bug:", 3)],
)  # fmt: skip
def test_exit_status(run: Run, source: str, status: int) -> None:
    assert run("diagnose", source).returncode == status


def test_json_is_one_object_and_nothing_else(run: Run) -> None:
    done = run("diagnose", "sample:slow_rank", "--json")
    assert json.loads(done.stdout)["verdicts"][0]["ranks"] == [37]
    assert done.returncode == 1


def test_problems_of_the_source_go_to_stderr(run: Run) -> None:
    done = run("diagnose", "sample:healthy", "--json")
    json.loads(done.stdout)
    assert done.stderr == "stepscope: warning: 1 file was left out\n"


def test_a_source_that_cannot_be_read_is_one_line(run: Run) -> None:
    done = run("diagnose", "broken:/nowhere", "--json")
    assert done.stdout == ""
    expected = "stepscope: cannot read /nowhere: no such folder; is the name right?\n"
    assert done.stderr == expected


def test_a_fault_of_ours_is_one_line_and_a_log(run: Run, tmp_path: Path) -> None:
    done = run("diagnose", "bug:", XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 3
    assert re.fullmatch(r"stepscope: internal error: ZeroDivisionError.*\n", done.stderr)
    [log] = (tmp_path / "stepscope").glob("*.log")
    assert str(log) in done.stderr
    assert "Traceback" in log.read_text()


@pytest.mark.parametrize(
    "args",
    [("diagnose",), ("diagnos", "x"), ("diagnose", "x", "--nope"), ("--interval", "x"),
     ("diagnose", "x", "--interval", "0")],
)  # fmt: skip
def test_bad_usage_is_one_line(run: Run, args: tuple[str, ...]) -> None:
    done = run(*args)
    assert done.returncode == 2
    assert re.fullmatch(r"stepscope: .*\n", done.stderr)
    assert done.stdout == ""


def test_plain_text_without_colour_in_a_pipe() -> None:
    done = run_alone("diagnose", "sample:hang")
    assert done.stdout.startswith("hang: rank 3 never entered")
    assert "\x1b" not in done.stdout


def test_an_encoding_that_knows_no_blocks_gets_ascii() -> None:
    done = run_alone("diagnose", "sample:slow_rank", PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert done.stdout.isascii()


def test_a_reader_that_leaves_is_no_finding() -> None:
    command = [sys.executable, str(FAKES), "diagnose", "sample:slow_rank"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert b"Traceback" not in process.stderr.read()


def test_html_prints_its_path_on_stderr(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = run("diagnose", "sample:slow_rank", "--html", str(page), "--json")
    json.loads(done.stdout)
    assert str(page) in done.stderr
    assert "rank 37" in page.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [page]


@pytest.mark.parametrize("path", ["missing/report.html", "."])
def test_html_that_cannot_be_written(run: Run, tmp_path: Path, path: str) -> None:
    done = run("diagnose", "sample:healthy", "--html", str(tmp_path / path))
    assert done.returncode == 2
    assert re.search(r"^stepscope: cannot write .*$", done.stderr)


def test_following_prints_a_line_per_change_and_ends_with_the_report(run: Run) -> None:
    done = run("diagnose", "changing:healthy,slow_rank", "--follow", "--interval", "0.1")
    lines = done.stdout.splitlines()
    assert "healthy: no culprit" in lines[0]
    assert "UTC  slower: rank 37" in lines[1]
    assert lines[2].startswith("slower: rank 37"), "then the report"
    assert done.returncode == 1, "the status of the last diagnosis"


def test_following_with_json_is_one_object_per_line(run: Run) -> None:
    done = run("diagnose", "changing:slow_rank,slow_rank,healthy", "-f", "--json",
               "--interval", "0.1")  # fmt: skip
    states = [json.loads(line)["state"] for line in done.stdout.splitlines()]
    assert states == ["regression", "healthy"]
    assert done.returncode == 0


def test_following_survives_a_source_that_is_gone_for_a_moment(run: Run) -> None:
    done = run("diagnose", "changing:healthy,unreachable,hang", "-f", "--interval", "0.1")
    assert "trying again" in done.stderr
    assert done.returncode == 1


def test_ctrl_c_before_any_diagnosis() -> None:
    assert run_alone("diagnose", "interrupt:", "--follow").returncode == 130
