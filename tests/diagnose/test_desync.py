"""Flight recorder dumps of jobs that hang, or do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.report.html import render_html
from stepscope.report.json import to_json
from stepscope.report.text import render_text

from ..formats.flight_recorder.recorders import (
    MS,
    Groups,
    a_job,
    everyone,
)
from .dumps import BACKENDS, GRID, diagnosis_of, the_verdict, without


@BACKENDS
def test_a_finished_job_is_healthy(tmp_path: Path, backend: str) -> None:
    ranks = a_job(4, backend)
    everyone(ranks, "all_reduce", times=20)
    diagnosis = diagnosis_of(tmp_path, ranks)
    assert (diagnosis.state, diagnosis.verdicts, diagnosis.ranks) == ("healthy", (), 4)


@BACKENDS
def test_the_rank_that_never_entered_is_named_with_its_last_frames(
    tmp_path: Path, backend: str
) -> None:
    ranks = a_job(4, backend)
    everyone(ranks, "all_reduce", times=5)
    everyone(without(ranks, 2), "all_reduce", state="scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.cause, verdict.ranks) == ("hang", "unknown", (2,))
    assert (verdict.victims, verdict.group, verdict.confidence) == (3, "world-0", 0.9)
    assert verdict.summary == (
        "rank 2 hangs: 3 ranks wait in AllReduce 6 of world-0 for rank 2, which never entered it; "
        "last seen in before_all_reduce (train.py:5)"
    )
    assert verdict.stack[0] == "<module> (/job/train.py:99)"
    assert verdict.stack[-1].startswith("all_reduce (")


def test_a_rank_that_never_called_anything(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(without(ranks, 1), "all_reduce", state="scheduled")
    assert the_verdict(tmp_path, ranks).ranks == (1,)


def test_reports_show_the_verdict(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    everyone(without(ranks, 2), "all_reduce", state="started")
    diagnosis = diagnosis_of(tmp_path, ranks)
    assert "never entered it; last seen in" in render_text(diagnosis)
    assert "before_all_reduce" in render_html(diagnosis)
    assert to_json(diagnosis)["verdicts"][0]["ranks"] == [2]


def test_waiting_is_followed_from_group_to_group(tmp_path: Path) -> None:
    """3 never enters tp1: 2 waits there, 0 for 2 in dp0, 1 for 0 in tp0."""
    ranks = a_job(4, groups=GRID)
    for group in GRID:
        everyone(ranks, "all_reduce", group, times=3)
    ranks[2].call("all_reduce", "tp1", "started")
    ranks[0].call("all_reduce", "dp0", "started")
    ranks[1].call("all_reduce", "tp0", "started")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.ranks, verdict.group, verdict.victims) == ((3,), "tp-tp1", 3)


def test_gloo_dumps_do_not_list_the_members_of_a_group(tmp_path: Path) -> None:
    ranks = a_job(4, "gloo", GRID)
    for group in GRID:
        everyone(ranks, "all_reduce", group, times=3)
    ranks[2].call("all_reduce", "tp1", "scheduled")
    ranks[0].call("all_reduce", "dp0", "scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.ranks, verdict.victims) == ((3,), 2)


PIPE: Groups = {"pp": ("PIPELINE_MODEL_PARALLEL_GROUP", (1, 3, 5, 7))}


def test_a_receive_without_a_send(tmp_path: Path) -> None:
    """The pipeline waits from back to front for rank 1, the first stage."""
    ranks = a_job(8, groups=PIPE)
    for before, after in ((1, 3), (3, 5), (5, 7)):
        ranks[before].send(after, "pp")
        ranks[after].recv(before, "pp")
        ranks[after].recv(before, "pp", state="started")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.ranks, verdict.victims, verdict.group) == ((1,), 3, "pp-pp")
    assert "Recv from rank 1 of pp-pp for rank 1, which never posted the Send" in verdict.summary


def test_a_batch_of_sends_has_the_state_of_its_last_entry(tmp_path: Path) -> None:
    """The members of a batch stay `scheduled`; only the entry `coalesced` is updated."""
    ranks = a_job(2, groups={"pp": ("pp", (0, 1))})
    for _ in range(3):
        for one, peer in ((ranks[0], 1), (ranks[1], 0)):
            one.send(peer, "pp", state="scheduled")
            one.recv(peer, "pp", state="scheduled", same_seq=True)
            one.call("coalesced", "pp", p2p=True, same_seq=True)
    assert diagnosis_of(tmp_path / "healthy", ranks).verdicts == ()
    ranks[0].recv(1, "pp", state="scheduled")
    ranks[0].call("coalesced", "pp", "started", p2p=True, same_seq=True)
    assert the_verdict(tmp_path / "stuck", ranks).ranks == (1,)


def test_all_entered_and_none_completed_is_the_network(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    everyone(ranks, "all_reduce", state="started")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.cause, verdict.ranks, verdict.victims) == (
        "hang", "network", (), 4)  # fmt: skip
    assert "all 4 ranks entered AllReduce 6 of world-0 and none completed it" in verdict.summary


def test_without_starts_a_kernel_may_hold_up_what_all_have_called(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    everyone(ranks, "all_reduce", state="scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.cause, verdict.ranks) == ("unknown", ())
    assert "a link stands still, or a kernel on one of them" in verdict.summary


def test_only_some_completed_is_the_network_too(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    everyone(ranks[:2], "all_reduce")
    everyone(ranks[2:], "all_reduce", state="started")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.cause, verdict.ranks) == ("network", ())
    assert "2 of 4 ranks completed AllReduce 6" in verdict.summary


def test_a_device_that_never_starts_what_others_started(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=5)
    everyone(without(ranks, 1), "all_reduce", state="started")
    ranks[1].call("all_reduce", state="scheduled")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.cause, verdict.ranks, verdict.victims) == ("compute", (1,), 3)


def test_gloo_dumps_in_which_all_entered_are_no_hang(tmp_path: Path) -> None:
    """A live job looks the same, and the states that gloo records do not differ."""
    ranks = a_job(4, "gloo")
    everyone(ranks, "all_reduce", times=5)
    everyone(ranks, "all_reduce", state="scheduled")
    assert diagnosis_of(tmp_path, ranks).verdicts == ()


@BACKENDS
def test_dumps_of_a_live_job_are_no_hang(tmp_path: Path, backend: str) -> None:
    """Written a moment after the last call, by a rank that is a call behind at that moment."""
    ranks = a_job(4, backend)
    everyone(ranks, "all_reduce", times=20)
    everyone(without(ranks, 2), "all_reduce", state="scheduled")
    assert diagnosis_of(tmp_path, ranks, age_ns=200 * MS).verdicts == ()
    assert the_verdict(tmp_path, ranks, age_ns=1500 * MS).confidence == 0.6
    verdict = the_verdict(tmp_path, ranks, age_ns=15_000 * MS)
    assert verdict.confidence == 0.9
    assert verdict.time_ns is not None
    assert verdict.time_ns[1] - verdict.time_ns[0] == pytest.approx(15_000 * MS, rel=0.01)


def test_hosts_that_run_steps_ahead_of_their_devices_are_no_hang(tmp_path: Path) -> None:
    """Called two seconds before the dumps; but operators ended until a moment before them."""
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=20)
    everyone(ranks, "all_reduce", state="started", times=5)
    the_verdict(tmp_path / "stuck", ranks, age_ns=2000 * MS)
    for one in ranks:
        one.entries[19]["time_discovered_completed_ns"] += 1900 * MS
    assert diagnosis_of(tmp_path / "live", ranks, age_ns=2000 * MS).verdicts == ()


def test_a_job_with_long_pauses_before_gets_a_longer_timeout(tmp_path: Path) -> None:
    ranks = a_job(4)
    everyone(ranks, "all_reduce", times=20)
    everyone(without(ranks, 2), "all_reduce", state="scheduled")
    for one in ranks:
        for entry in one.entries[15:]:
            entry["time_created_ns"] += 20_000 * MS  # it saved a checkpoint
    assert diagnosis_of(tmp_path, ranks, age_ns=25_000 * MS).verdicts == ()
    assert the_verdict(tmp_path, ranks, age_ns=31_000 * MS).ranks == (2,)


def test_gloo_operators_that_failed_are_retired_too(tmp_path: Path) -> None:
    """Rank 2 left; the others got an error from their last operator and dumped then. If they did
    so at once, it may also have been dumped a moment before it called that operator."""
    ranks = a_job(4, "gloo")
    everyone(ranks, "all_reduce", times=5)
    everyone(without(ranks, 2), "all_reduce")
    for age_ms, confidence in ((10, 0.45), (2_000, 0.6)):
        verdict = the_verdict(tmp_path / str(age_ms), ranks, age_ns=age_ms * MS)
        assert (verdict.ranks, verdict.confidence) == ((2,), confidence)


def test_recorders_that_report_only_the_order(tmp_path: Path) -> None:
    ranks = a_job(4, "gloo")
    everyone(ranks, "all_reduce", times=5, state="scheduled")
    assert diagnosis_of(tmp_path / "healthy", ranks).verdicts == ()
    everyone(without(ranks, 2), "all_reduce", state="scheduled")
    assert the_verdict(tmp_path / "stuck", ranks).ranks == (2,)


def test_a_deadlock_of_receives(tmp_path: Path) -> None:
    ranks = a_job(3, groups={"pp": ("pp", (0, 1, 2))})
    for one in ranks:
        one.recv((one.rank + 1) % 3, "pp", state="started")
    verdict = the_verdict(tmp_path, ranks)
    assert (verdict.kind, verdict.cause, verdict.ranks) == ("hang", "code", ())


def test_renumbering_ranks_only_renumbers_the_verdict(tmp_path: Path) -> None:
    for culprit in range(4):
        ranks = a_job(4)
        everyone(ranks, "all_reduce", times=5)
        everyone(without(ranks, culprit), "all_reduce", state="started")
        verdict = the_verdict(tmp_path / str(culprit), ranks)
        assert (verdict.ranks, verdict.victims) == ((culprit,), 3)
