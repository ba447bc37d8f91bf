"""`stepscope diagnose --explain` and `--method`, as people type them."""

from __future__ import annotations

import pytest

from stepscope.cli import main
from stepscope.cli.diagnose import with_rank
from stepscope.cli.writing import write_window
from stepscope.store.location import Location
from tests.diagnose.jobs import Fault, a_job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("jobs") / "slow"
    slow = a_job(faults=[Fault((2,), "forward-compute", 100, ms=60)])
    write_window(slow, Location.parse(str(folder)), "host-0")
    return str(folder)


def test_a_rank_may_follow_and_need_not() -> None:
    assert with_rank(["diagnose", "job", "--explain"]) == ["diagnose", "job", "--explain", "all"]
    assert with_rank(["diagnose", "--explain", "job"]) == ["diagnose", "--explain", "all", "job"]
    assert with_rank(["diagnose", "--explain", "7", "job"]) == ["diagnose", "--explain", "7", "job"]


def test_everybody_who_was_considered(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", job, "--explain"]) == 1
    report, _, trail = capsys.readouterr().out.partition("\nEverybody who was considered: ")
    assert report.startswith("slower: rank 2 computes")
    assert trail.startswith("1 named, ")
    assert "\nrank 2: named in verdict 1, " in trail


def test_why_one_rank_was_not_named(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--explain", "1", job]) == 1
    assert "\nrank 1: not named, ended by own-time/" in capsys.readouterr().out


def test_one_method_alone(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", job, "--method", "hang"]) == 0
    assert capsys.readouterr().out.startswith("nothing found by hang alone, in 4 ranks")


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--method", "nonsense"], "no method is called nonsense"),
     (["--explain=seven"], "--explain takes the number of a rank, not 'seven'"),
     (["--follow", "--method", "hang"], "leave out --follow")],
)  # fmt: skip
def test_mistakes_are_one_line(
    job: str, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", job, *options]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and said in shown.err and shown.err.count("\n") == 1
