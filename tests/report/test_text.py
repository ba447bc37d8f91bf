"""The text report: read golden/*.txt to see what users see."""

from __future__ import annotations

import dataclasses

import pytest

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.shown import ClockFit, StepSeries
from stepscope.report.text import render_headline, render_text

from .golden import check_golden
from .samples import (
    SAMPLES,
    T0,
    hang,
    healthy,
    many_traces,
    one_trace,
    rank_phases,
    slow_rank,
    traces,
)


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("name", SAMPLES)
def test_text_is_what_the_golden_file_says(name: str, width: int) -> None:
    check_golden(f"{name}.{width}.txt", render_text(SAMPLES[name](), width))


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", SAMPLES)
def test_no_line_is_wider_than_the_terminal_nor_ends_in_blanks(name: str, width: int) -> None:
    for line in render_text(SAMPLES[name](), width).splitlines():
        assert len(line) <= width
        assert line == line.rstrip()


@pytest.mark.parametrize("name", SAMPLES)
def test_ascii_is_the_same_column_for_column(name: str) -> None:
    plain = render_text(SAMPLES[name](), ascii_only=True)
    assert plain.isascii()
    assert [len(line) for line in plain.splitlines()] == [
        len(line) for line in render_text(SAMPLES[name]()).splitlines()
    ]


def test_colour_is_optional() -> None:
    assert "\x1b" not in render_text(slow_rank())
    assert "\x1b[" in render_text(slow_rank(), color=True)


def test_the_verdict_is_the_first_line() -> None:
    first = render_text(slow_rank(), 120).splitlines()[0]
    assert first == render_headline(slow_rank())
    assert "rank 37" in first


def test_names_from_the_job_cannot_steer_the_terminal() -> None:
    verdict = dataclasses.replace(hang().verdicts[0], summary="[red]\x1b[2Jboo", stack=("a\x07",))
    text = render_text(dataclasses.replace(hang(), job_id="j\x1b]0;x\x07", verdicts=(verdict,)))
    assert not any(c < " " and c != "\n" for c in text)
    assert "[red]" in text, "what looks like markup is a name"


def test_the_clock_of_a_rank_on_an_unknown_host() -> None:
    clocks = (ClockFit("", 4_380_000, 0.0, 11),)
    text = render_text(dataclasses.replace(slow_rank(), clocks=clocks), width=100)
    assert "  Clocks    rank 11 is 4.38 ms ahead" in text


def test_a_healthy_job_of_many_ranks_needs_no_table() -> None:
    text = render_text(healthy())
    assert text.startswith("healthy: no culprit found in 64 ranks, steps 1000-1200\n")
    assert "Own time" not in text


def test_an_unknown_cause_moves_the_confidence_to_the_culprit() -> None:
    verdict = dataclasses.replace(hang().verdicts[0], cause="unknown", time_ns=(T0, T0))
    text = render_text(dataclasses.replace(hang(), verdicts=(verdict,)), 100)
    assert "Why       the recorded data does not show the cause\n" in text
    assert "Where     rank 3 on host-000, confidence 0.99; group dp-0" in text
    assert "UTC\n" in text, "how long is not known"


def test_a_function_that_computes_is_no_failing_device() -> None:
    slow = slow_rank()
    (first, *_) = slow.verdicts
    burns = dataclasses.replace(first, function="burn_cpu (train.py:56)")
    text = " ".join(render_text(dataclasses.replace(slow, verdicts=(burns,)), 100).split())
    assert "in a function that takes a smaller share of its peers' time" in text
    assert "throttling" not in text


def test_traces_show_where_the_time_goes() -> None:
    text = render_text(traces(), 100)
    parts = text.split("Where an average step goes\n")[1].split("\n\n")[0]
    assert parts.split()[:4] == ["rank", "compute", "exposed", "comm."]
    assert "takes 49% of an average step." in " ".join(parts.split()), "of the middle rank"
    last = text.split("Last arrivals in collectives\n")[1]
    assert last.startswith(
        "  AllReduce in dp-0: rank 2 arrived last in 17 of 18 and alone delayed "
    )
    assert "\n  AllGather in tp-1: rank 3 arrived last in 101 of 288 and alone delayed " in last


def test_a_single_rank_has_no_last_arrivals() -> None:
    text = render_text(one_trace())
    assert "The device is idle, waiting for the host to launch work, for 46%" in text
    assert "Last arrivals" not in text
    assert "median" not in text


def test_many_ranks_without_outliers_show_the_median() -> None:
    text = render_text(many_traces())
    assert "Own time" not in text
    rows = text.split("Where an average step goes (64 ranks, no outliers)")[1].splitlines()[1:]
    assert rows[2].split()[:3] == ["median", "800", "ms"]


def test_many_ranks_show_the_culprit_first_and_few_others() -> None:
    slow = {(37, "backward-compute"): 1.9, **{(r, "optimizer"): 3.0 for r in range(100, 140)}}
    diagnosis = dataclasses.replace(slow_rank(), ranks=1024, rank_phases=rank_phases(1024, slow))
    rows = render_text(diagnosis).split("Own time")[1].splitlines()[3:]
    shown = [int(row.split()[0]) for row in rows[:8]]
    assert shown[0] == 37
    assert all(100 <= rank < 140 for rank in shown[1:])
    assert rows[8].split()[0] == "median"


def test_one_enormous_first_step_does_not_flatten_the_rest() -> None:
    took = (60_000_000_000, *(1_000_000_000,) * 30, *(1_500_000_000,) * 30)
    diagnosis = Diagnosis("j", 8, "healthy", (0, 60), series=StepSeries(tuple(range(61)), took))
    line = render_text(diagnosis).splitlines()[4].strip()
    assert line[0] == "█"
    assert line[10] < line[50], "the slower half is still seen"


def test_anomalies_without_a_culprit_are_reported() -> None:
    diagnosis = dataclasses.replace(healthy(), state="jitter")
    assert "no culprit found" in render_headline(diagnosis)
    assert not render_headline(diagnosis).startswith("healthy")
    assert diagnosis.outcome == "unexplained", "nothing was found"


def test_suspects_beside_the_first_finding_are_no_culprits() -> None:
    (named,) = slow_rank().verdicts
    doubtful = dataclasses.replace(named, confidence=0.45)
    both = dataclasses.replace(slow_rank(), verdicts=(named, named, doubtful))
    assert "(and 1 more culprit and 1 more suspect)" in render_headline(both)
    nobody = dataclasses.replace(both, verdicts=(doubtful, doubtful, doubtful))
    assert "(and 2 more suspects)" in render_headline(nobody)
