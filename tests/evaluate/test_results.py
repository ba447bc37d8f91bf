"""Results as files, tables and comparisons."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.errors import FormatError, SourceError, UsageError
from stepscope.evaluate import papers, table
from stepscope.evaluate.intervals import Confusion, Rate
from stepscope.evaluate.page import render_page
from stepscope.evaluate.publish import publish, put
from stepscope.evaluate.results import Keeper, Results, compare, read, write
from stepscope.evaluate.runner import Result
from stepscope.evaluate.text import render, render_changes
from tests.evaluate.jobs import a_result

HEALTHY = replace(
    a_result("healthy", costly=False, found=None, complete=None, cause=None, device=None),
    row="healthy", family="nothing is wrong", fault="", said=(), steps_to_verdict=None,
)  # fmt: skip
HANG = {"hangs": True, "said_hang": True, "found_hang": True}


def some(*results: Result) -> Results:
    return Results("smoke", True, (0,), "1.0", results or (a_result(), HEALTHY))


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    write(some(), tmp_path / "now.json")
    assert read(tmp_path / "now.json") == some()


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 2}', "[]"])
def test_another_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(FormatError, match=r"x\.json is no file of"):
        read(tmp_path / "x.json")


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot read"):
        read(tmp_path / "none.json")


def test_rows_count_costly_jobs_and_alarms_apart() -> None:
    wrong = a_result("other", found=False, accused=2)
    cheap = a_result("third", costly=False, found=None, complete=None, cause=None, device=None)
    row, healthy = table.rows([a_result(), wrong, cheap, HEALTHY])
    assert (row.jobs, row.costly, row.found) == (3, 2, Rate(1, 2))
    assert (row.alarms, row.accused) == (Rate(0, 1), Rate(1, 3))
    assert (healthy.name, healthy.alarms) == ("healthy", Rate(0, 1))


def test_hangs_are_counted_by_what_was_said_and_by_whom_it_named() -> None:
    wrong = a_result("b", hangs=True, said_hang=True)
    missed = a_result("c", hangs=True)
    false = a_result("d", said_hang=True)
    jobs = [a_result("a", **HANG), wrong, missed, false]
    assert table.hangs_reported(jobs) == Confusion(2, 1, 1)
    assert table.hangs_found(jobs) == Confusion(1, 2, 2)


def test_equal_results_have_no_differences() -> None:
    assert compare(some(), some()).changes == ()


def test_a_job_that_came_out_worse_is_named() -> None:
    found = compare(some(a_result()), some(a_result(found=False, accused=1)))
    assert [(one.better, one.what) for one in found.changes] == [
        (False, "found yes -> no"), (False, "innocent ranks 0 -> 1"),
    ]  # fmt: skip
    assert "gpu_slow / 16 ranks: found yes -> no" in render_changes(found)


def test_a_job_that_loses_much_and_is_called_healthy_came_out_worse() -> None:
    told = a_result(found=False)
    silent = replace(told, said=(), state="healthy", cost=0.2)
    found = compare(some(replace(told, cost=0.2)), some(silent))
    assert [(one.better, one.what) for one in found.changes] == [
        (False, "called healthy no -> yes"),
    ]
    assert not compare(some(told), some(replace(silent, cost=0.1))).changes


def test_jobs_of_one_file_only_are_counted() -> None:
    found = compare(some(a_result()), some(HEALTHY))
    assert (found.common, found.only_before, found.only_after) == (0, 1, 1)


def test_the_text_has_every_row_and_what_the_paper_reports() -> None:
    text = render(some())
    assert "gpu_slow" in text and "healthy" in text
    assert "GPU frequency throttling" in text


def test_the_page_is_one_file_and_names_what_went_wrong() -> None:
    page = render_page(some(a_result(found=False), HEALTHY))
    assert "<svg" in page and "http" not in page
    assert "gpu_slow at 3" in page


def test_tables_go_where_the_page_has_room(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- smoke -->\nold\n<!-- end smoke -->\nafter\n")
    publish(some(), page)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| gpu_slow | 1/1 | 1/1 (21-100 %) |" in text
    assert put(text, some()) == text


def test_a_page_without_room_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here\n")
    with pytest.raises(UsageError, match="add the lines <!-- smoke -->"):
        publish(some(), page)
    assert page.read_text() == "nothing here\n"


FAILED = a_result("lost", found=False, complete=False, cause=False)
FAILED = replace(FAILED, failed="ValueError: no such rank (l2.py:88)", said=())


def test_a_job_that_failed_is_told_and_found_nothing() -> None:
    quiet = replace(HEALTHY, failed="its process died")
    row, healthy = table.rows([a_result(), FAILED, HEALTHY, quiet])
    assert (row.failed, row.found) == (1, Rate(1, 2))
    assert (healthy.failed, healthy.alarms) == (1, Rate(0, 1))
    text = render(some(a_result(), FAILED))
    assert "2, 1 failed" in text
    assert "lost: ValueError: no such rank (l2.py:88)" in text
    assert "failed: ValueError" in render_page(some(a_result(), FAILED))


def test_a_job_that_fails_only_now_came_out_worse() -> None:
    found = compare(some(HEALTHY), some(replace(HEALTHY, failed="its process died")))
    assert [(one.better, one.what) for one in found.changes] == [
        (False, "failed: its process died"),
    ]


def test_what_was_interrupted_says_so(tmp_path: Path) -> None:
    cut = replace(some(), missing=3)
    write(cut, tmp_path / "now.json")
    assert "interrupted, 3 jobs not run" in render(read(tmp_path / "now.json"))


def test_venustrace_emulated_faults_in_passes_and_transfers_only() -> None:
    known = {"row": "hang", "family": "VenusTrace: hangs at random positions"}
    jobs = [replace(a_result(at, **HANG), **known, form=f"hang {at}")  # type: ignore[arg-type]
            for at in ("forward", "host")]  # fmt: skip
    (measure,) = papers.of_venustrace(jobs)
    assert measure.ours.startswith("F1 1.00 (1 found")


def test_a_case_study_is_counted_by_the_size_it_stands_for() -> None:
    case = replace(a_result("case 5"), row="case 5: a misleading event", ranks=576, size=512)
    twice = replace(case, id="again", said=case.said * 2)
    (measure,) = papers.of_argus_cases([case, twice])
    assert measure.what == "case 5: a misleading event, 512 ranks"
    assert "exactly one verdict 50 % (1 of 2;" in measure.ours
    assert "12,960" in measure.theirs


def test_several_sizes_are_told_apart_with_what_was_said_of_healthy_jobs() -> None:
    alarm = replace(HEALTHY, id="loud", score=replace(HEALTHY.score, alarms=1))
    small, large = table.by_size([a_result(), HEALTHY, alarm, replace(a_result("b"), ranks=4096)])
    assert (small.what, large.what) == ("16 ranks", "4,096 ranks")
    assert "false alarms on healthy jobs 50 % (1 of 2;" in small.ours
    assert "healthy" not in large.ours


def test_writing_takes_a_small_share_of_the_time(tmp_path: Path) -> None:
    moments = iter([0.0, 1.0, 20.0, 22.0, 23.0])
    keeper = Keeper(tmp_path / "now.json", lambda: next(moments))
    kept = []
    for number in range(3):
        keeper.keep(replace(some(), missing=number))
        kept.append(read(tmp_path / "now.json").missing)
    assert kept == [0, 0, 2]
