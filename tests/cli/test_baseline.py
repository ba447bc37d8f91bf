"""`stepscope baseline`, `diagnose --expected` and `diagnose --prompt`, as people type them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.cli.writing import write_window
from stepscope.store.location import Location
from stepscope.window import Window
from tests.diagnose.jobs import a_job
from tests.diagnose.profiles import Rows, Share, profile


def job(folder: Path, share: float) -> str:
    """All ranks spend so much in one function, in two windows."""
    rows: Rows | None = None
    for turn in range(2):
        parse = Share("parse", "python", share, location="data.py:2", caller="train.py:9 main")
        work = [Share("aten::mm", "operator", 0.6), parse]
        rows = profile(4, work, (40 + 50 * turn, 49 + 50 * turn), turn, rows)
    assert rows is not None
    plain = a_job(stacks=False)
    window: Window = replace(plain, tables={**plain.tables, "patterns": rows.table()})
    write_window(window, Location.parse(str(folder)), "host-0")
    return str(folder)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> str:
    return job(tmp_path_factory.mktemp("jobs") / "slow", 0.2)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> str:
    return job(tmp_path_factory.mktemp("jobs") / "good", 0.03)


def test_a_function_of_all_ranks_is_named(slow: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", slow]) == 1
    out = capsys.readouterr().out
    assert "all ranks spend 20 % of their steps in parse (data.py:2)" in out
    assert "Profiled steps, steps 90-99, 4 ranks" in out


def test_what_healthy_jobs_do_is_healthy(
    good: str, slow: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "expected.json")
    assert main(["baseline", good, "--out", out]) == 0
    assert "in 2 windows of 1 jobs" in capsys.readouterr().err
    assert main(["diagnose", slow, "--expected", out]) == 1
    assert main(["diagnose", good, "--expected", out]) == 0
    assert main(["baseline", slow, "--anyway", "--out", out]) == 0
    assert main(["diagnose", slow, "--expected", out]) == 0


def test_an_unhealthy_job_is_left_out(slow: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", slow]) == 2
    err = capsys.readouterr().err
    assert "left out, it is not healthy: all ranks spend 20 %" in err
    assert "nothing was learned" in err


def test_without_a_file_it_is_printed(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", good]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "stepscope-expected"


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"format": 1}'])
def test_another_file_is_one_line(
    good: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "foreign.json"
    path.write_bytes(content)
    assert main(["diagnose", good, "--expected", str(path)]) == 2
    err = capsys.readouterr().err
    assert "is no baseline" in err and err.count("\n") == 1


def test_the_prompt_quotes_code_from_the_folder_alone(
    slow: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text("secret\n" * 9)
    (tmp_path / "code").mkdir()
    (tmp_path / "code/data.py").write_text("def parse(line):\n    return sum(range(10**6))\n")
    (tmp_path / "code/train.py").symlink_to(outside)
    assert main(["diagnose", slow, "--prompt", "--code", str(tmp_path / "code")]) == 1
    out = capsys.readouterr().out
    assert '2: "    return sum(range(10**6))"' in out
    assert "secret\\n" not in out and '"secret"' not in out
    assert "VERDICT 1" in out


def test_a_prompt_needs_no_code(slow: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", slow, "--prompt"]) == 1
    assert "parse (data.py:2)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [["--no-redact"], ["--code", "."], ["--prompt", "--json"], ["--prompt", "--code", "nowhere"],
     ["--prompt", "--follow"]],
)  # fmt: skip
def test_mistakes_are_one_line(
    good: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", good, *options]) == 2
    assert capsys.readouterr().err.count("\n") == 1
