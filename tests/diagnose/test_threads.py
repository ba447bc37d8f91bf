"""Helper threads, loader workers and the user's own lines in profiled steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.patterns import Function

from .profiles import Share, a_window, but, profile, usual

RANKS = 8
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def judged(*more: Share) -> Diagnosis:
    kept = [one for one in usual(RANKS) if one.kind == "kernel"]
    return diagnose(a_window(RANKS, profile(RANKS, [*kept, *more])))


def spinning(held: object) -> Sequence[Share]:
    """A helper that holds the GIL, and a training thread that is slow without its processor."""
    return (
        Share("compress", "python", held, location="train.py:9", thread="GIL: Thread-1"),  # type: ignore[arg-type]
        Share("step", "python", 0.2, mu=0.1, location="torch/optim/sgd.py:9", resource="cpu"),
    )


def test_a_helper_thread_that_holds_the_gil_on_all_ranks() -> None:
    (verdict,) = (one for one in judged(*spinning(0.9)).verdicts if one.cause == "host")
    assert verdict.ranks == () and verdict.function == "compress (train.py:9)"
    assert "holds the GIL for 90 % of the time" in verdict.summary
    assert verdict.lost_fraction is not None and abs(verdict.lost_fraction - 0.18) < 0.01


def test_on_one_rank_the_rank_is_named() -> None:
    found = judged(*spinning(but(0.0, RANKS, r3=0.9)))
    (verdict,) = (one for one in found.verdicts if one.cause == "host")
    assert verdict.ranks == (3,)


def test_a_helper_thread_that_holds_it_now_and_then_is_no_fault() -> None:
    assert not [one for one in judged(*spinning(0.1)).verdicts if one.cause == "host"]


def test_what_loader_workers_do_is_named_when_the_loader_waits_for_them() -> None:
    found = judged(
        Share(LOADER, "python", 0.3, location="torch/utils/data/dataloader.py:1278"),
        Share("decode", "python", 0.8, location="data.py:7", thread="loader worker 0"),
        Share("decode", "python", 0.7, location="data.py:7", thread="loader worker 1"),
    )
    (verdict,) = found.verdicts
    assert (verdict.cause, verdict.function) == ("data_loading", "decode (data.py:7)")
    assert "waiting for loader workers, which are in decode" in verdict.summary


def test_loader_workers_that_are_busy_beside_training_cost_nothing() -> None:
    decode = Share("decode", "python", 0.9, location="data.py:7", thread="loader worker 0")
    assert judged(decode).verdicts == ()


def test_what_one_rank_calls_by_another_name_is_no_difference() -> None:
    """A profiler shows `open` on rank 3, and what `open` calls on its peers."""
    found = judged(
        Share(
            "open",
            "python",
            but(0.0, RANKS, r3=0.06),
            location="pathlib.py:9",
            caller="d.py:5 read",
        ),
        Share("<built-in open>", "python", but(0.06, RANKS, r3=0.0), caller="d.py:5 read"),
    )
    assert not [one for one in found.verdicts if one.ranks]


def test_a_function_in_c_is_named_by_the_user_s_line() -> None:
    read = Function("<built-in method read>", "python", caller="/job/data.py:57 load")
    assert read.in_users_code == "load (/job/data.py:57)"
    add = Function("<built-in method add_ of Tensor object>", "python", caller="train.py:3 step")
    assert add.in_users_code == add.frame


def test_functions_that_wait_for_the_gil_are_its_victims() -> None:
    slow = Share("norm", "python", 0.4, mu=0.05, location="model.py:3", resource="cpu")
    (verdict,) = judged(slow, *spinning(0.9)).verdicts
    assert verdict.function == "compress (train.py:9)"
    (verdict,) = judged(slow).verdicts
    assert verdict.function == "norm (model.py:3)"


def test_the_workers_of_one_rank_whose_loader_is_slow_are_named() -> None:
    wait = Share(LOADER, "python", but(0.005, RANKS, r3=0.5), location="torch/utils/data/x.py:1")
    decode = Share("decode", "python", but(0.1, RANKS, r3=0.9), location="data.py:7",
                   thread="loader worker 0")  # fmt: skip
    (verdict,) = judged(wait, decode).verdicts
    assert (verdict.ranks, verdict.function) == ((3,), "decode (data.py:7)")
    assert any("workers spend 100 % of their time" in one.detail for one in verdict.evidence)


def test_a_loop_that_sleeps_stands_in_for_a_device() -> None:
    sleep = Share("<built-in function sleep>", "python", 0.5, mu=0.0, caller="train.py:9 main")
    linear = Share("aten::linear", "operator", 0.1, caller="train.py:12 main")
    assert judged(sleep, linear).verdicts == ()
    elsewhere = replace(sleep, caller="train.py:40 log_norms")
    (verdict,) = judged(elsewhere, linear).verdicts
    assert verdict.function == "log_norms (train.py:40)"
