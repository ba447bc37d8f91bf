"""`stepscope evaluate` from the command line, on the smallest suite there can be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.cli.evaluate import _conditions, with_names
from stepscope.evaluate import SUITES, Case, Result
from stepscope.evaluate.collectors import COLLECTORS
from stepscope.evaluate.results import read
from stepscope.evaluate.strip import STRIPS
from stepscope.evaluate.suites import SMOKE
from tests.evaluate.jobs import a_result

TINY = replace(SMOKE, steps=24, onset=10, healthy=1)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUITES, "smoke", TINY)


def test_scores_are_printed_written_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "now.json")
    args = ["evaluate", "--family", "stuck_loader", "--seeds", "1", "--jobs", "1", "--json", file]
    assert main(args) == 0
    text = capsys.readouterr().out
    assert "stuck_loader" in text and "via wire, processor and store" in text
    assert "reported as a hang   F1 1.00 (1 found, 0 missed, 0 false)" in text
    assert main(["evaluate", "--compare", file, file]) == 0
    page = tmp_path / "now.html"
    assert main(["evaluate", "--from", file, "--html", str(page)]) == 0
    assert "stuck_loader" in page.read_text()


def test_a_healthy_job_is_scored_without_the_wire(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--fast", "--family", "healthy", "--jobs", "1"]) == 0
    assert "straight from the simulator" in capsys.readouterr().out


def test_each_job_is_diagnosed_again_with_less_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, page = tmp_path / "now.json", tmp_path / "page.md"
    page.write_text("<!-- less data: smoke -->\n<!-- end less data: smoke -->\n")
    args = ["evaluate", "--fast", "--family", "stuck_loader", "--jobs", "1", "--json", str(file),
            "--strip", "no-kernels,no-stacks+no-hardware", "--collectors", "all+topology",
            "--publish", str(page), "--html", str(tmp_path / "now.html")]  # fmt: skip
    assert main(args) == 0
    text = capsys.readouterr().out
    assert "1 simulated job, each diagnosed 4 times (1 seed)" in text
    names = ("everything", "no-kernels", "no-stacks+no-hardware", "by all+topology")
    assert all(f"\n{name} " in text for name in names)
    assert "Verdicts by stated confidence" in text
    assert all(f"| {name} | 1 | 1 |" in page.read_text() for name in names)
    assert "With less data" in (tmp_path / "now.html").read_text()
    found = read(file)
    assert found.conditions == names
    assert [one.condition for one in found.results] == ["", *names[1:]]
    assert len({one.id for one in found.results}) == 4


def test_without_a_name_every_strip_and_set_is_meant() -> None:
    assert with_names(["evaluate", "--strip", "--fast"]) == [
        "evaluate", "--strip", "all", "--fast",
    ]  # fmt: skip
    given = with_names(["-v", "evaluate", "--strip", "half-ranks", "--collectors"])
    assert given[:-1] == ["-v", "evaluate", "--strip", "half-ranks", "--collectors"]
    (_, *conditions) = _conditions("all", given[-1])
    assert {one.name for one in conditions} >= {*STRIPS, "by all", "by all+topology", "by kineto"}


def test_the_arguments_of_a_script_are_its_own() -> None:
    args = ["run", "--", "python", "evaluate", "--strip", "--fast"]
    assert with_names(args) == args


def test_the_list_describes_every_strip_and_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--list"]) == 0
    text = capsys.readouterr().out
    every = [(one.name, one.help) for one in STRIPS.values()]
    for name, help in (*every, *((one.name, one.help) for one in COLLECTORS.values())):
        assert any(line.split() == [name, *help.split()] for line in text.splitlines())


def test_more_conditions_continue_an_earlier_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["evaluate", "--fast", "--family", "healthy", "--seeds", "1", "--jobs", "1",
            "--json", str(tmp_path / "now.json"), "--resume"]  # fmt: skip
    assert main([*args, "--strip", "five-steps"]) == 0
    assert main([*args, "--strip", "no-groups"]) == 0
    assert [one.condition for one in read(tmp_path / "now.json").results] == ["", "no-groups"]


def test_other_seeds_are_other_jobs(tmp_path: Path) -> None:
    args = ["evaluate", "--fast", "--family", "healthy", "--jobs", "1", "--seeds", "1"]
    file = str(tmp_path / "now.json")
    assert main([*args, "--first-seed", "7", "--json", file]) == 0
    assert read(Path(file)).seeds == (7,)
    assert [one.seed for one in read(Path(file)).results] == [7000]


def test_one_command_publishes_every_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("standard", "argus", "large"):
        monkeypatch.setitem(SUITES, name, replace(TINY, name=name))
    page, kept = tmp_path / "page.md", tmp_path / "now.json"
    args = ["evaluate", "--suite", "all", "--fast", "--family", "healthy", "--seeds", "1",
            "--jobs", "1", "--publish", str(page), "--json", str(kept)]  # fmt: skip
    places = [f"<!-- {name} -->\n<!-- end {name} -->\n" for name in SUITES]
    page.write_text("".join(places[:-1]), encoding="utf-8")
    assert main(args) == 2
    assert "has no place for suite large" in capsys.readouterr().err
    page.write_text("".join(places), encoding="utf-8")
    assert main(args) == 0
    text = page.read_text(encoding="utf-8")
    for name in SUITES:
        assert f"Suite {name}, 1 simulated job (" in text
        assert (tmp_path / f"now.{name}.json").exists()


def test_ctrl_c_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stepscope.evaluate.runner.run_case", interrupted)
    kept = tmp_path / "now.json"
    args = ["evaluate", "--fast", "--family", "healthy", "--jobs", "1", "--json", str(kept)]
    assert main(args) == 130
    assert "interrupted, 1 job not run" in capsys.readouterr().out
    assert read(kept).missing == 1


def test_what_was_interrupted_goes_on_with_the_jobs_that_are_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played: list[str] = []

    def interrupted_once(case: Case, *_: object) -> tuple[Result, ...]:
        played.append(case.id)
        if len(played) == 2:
            raise KeyboardInterrupt
        return (a_result(case.id),)

    monkeypatch.setattr("stepscope.evaluate.runner.run_case", interrupted_once)
    kept = tmp_path / "now.json"
    args = ["evaluate", "--family", "healthy", "--seeds", "3", "--jobs", "1", "--json", str(kept)]
    assert main(args) == 130
    assert (len(read(kept).results), read(kept).missing) == (1, 2)
    page = tmp_path / "page.md"
    page.write_text("<!-- smoke -->\n<!-- end smoke -->\n", encoding="utf-8")
    assert main(["evaluate", "--from", str(kept), "--publish", str(page)]) == 0
    assert "interrupted, 2 jobs not run" in page.read_text(encoding="utf-8")
    assert main([*args, "--resume"]) == 0
    assert played[2] == played[1] and len(set(played)) == 3
    assert len({one.id for one in read(kept).results}) == 3 and read(kept).missing == 0
    assert main([*args, "--resume", "--fast"]) == 2
    assert "contains suite smoke, run without --fast" in capsys.readouterr().err


def test_what_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For want of memory, say, beside other work."""
    monkeypatch.setattr(
        "stepscope.evaluate.runner.run_case",
        lambda case, *_: (replace(a_result(case.id), failed="its process died"),),
    )
    kept = tmp_path / "now.json"
    args = ["evaluate", "--family", "healthy", "--jobs", "1", "--json", str(kept)]
    assert main(args) == 0 and len(read(kept).failed) == 1
    monkeypatch.setattr("stepscope.evaluate.runner.run_case", lambda case, *_: (a_result(case.id),))
    assert main([*args, "--resume"]) == 0 and read(kept).failed == ()


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (
            ["--suite", "big"],
            "unknown suite big; known: smoke, standard, argus, large, all",
        ),
        (["--family", "gpu_hot"], "unknown fault gpu_hot"),
        (["--from", "none.json"], "cannot read none.json"),
        (["--resume"], "--resume needs --json FILE"),
        (["--strip", "no-kernels,no-luck"], "unknown strip no-luck; known: no-wait-marks, "),
        (["--collectors", "dcgm"], "unknown set of collectors dcgm; known: hooks, "),
        (["--collectors", "all+wishes"], "unknown addition to collectors wishes; known: topology"),
        (["--strip", "--method", "gc-turns"], "--method scores whole jobs"),
    ],
)
def test_what_makes_no_sense_is_said(
    args: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", *args]) == 2
    assert why in capsys.readouterr().err
