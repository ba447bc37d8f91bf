"""What is learned of healthy jobs, what it finds, and that foreign files cannot do harm."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.diagnose.expected import (
    Expected,
    InvalidBaselineError,
    Key,
    from_json,
    to_json,
)
from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.overview.learned import Learning
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import Settings

from .profiles import Share, a_window, profile, usual

RANKS = 16


def learned(windows: int = 5, noise: float = 0.02) -> Expected:
    learning = Learning()
    for seed in range(windows):
        learning.add(a_window(RANKS, profile(RANKS, usual(RANKS, noise, seed))))
    return learning.expected


def judged(shares: list[Share], expected: Expected) -> Diagnosis:
    window = a_window(RANKS, profile(RANKS, shares))
    return diagnose(window, Settings(expected=expected))


def test_ranges_hold_what_healthy_jobs_do() -> None:
    ranges = learned().functions[Key("kernel", "gemm", "")]
    assert 0.4 < ranges.beta.high < 0.5
    assert ranges.mu is not None and ranges.mu.low < 0.95 < ranges.mu.high
    assert ranges.step_ns is not None and ranges.step_ns.low < 0.2e9 < ranges.step_ns.high


def test_few_windows_make_wide_ranges() -> None:
    key = Key("kernel", "gemm", "")
    assert learned(1).functions[key].beta.high > learned(5).functions[key].beta.high + 0.1


def test_lines_may_move() -> None:
    assert Key("python", "forward", "model.py") not in learned().functions  # below one percent
    learning = Learning()
    slow = [*usual(RANKS)[:3], Share("load", "python", 0.2, location="data.py:7")]
    learning.add(a_window(RANKS, profile(RANKS, slow)))
    moved = [*slow[:3], replace(slow[3], location="data.py:9")]
    assert not judged(moved, learning.expected).verdicts
    assert judged(moved, Expected()).verdicts


@pytest.mark.parametrize("seed", range(20, 30))
def test_another_healthy_job_is_healthy(seed: int) -> None:
    assert not judged(usual(RANKS, 0.02, seed), learned()).verdicts


def test_a_slower_network_is_named() -> None:
    """EROICA, section 6.2: all collectives move less than they should, and take longer."""
    shares = usual(RANKS, 0.02, 7)
    slow = replace(shares[-1], mu=0.3, beta=np.asarray(shares[-1].beta) + 0.2)
    (verdict,) = judged([*shares[:-1], slow], learned()).verdicts
    assert (verdict.cause, verdict.ranks) == ("network", ())
    assert not judged([*shares[:-1], slow], Expected()).verdicts


def test_devices_that_others_use_are_named() -> None:
    """EROICA, appendix B: nearly all kernels take longer at the usual clock."""
    healthy = [
        Share(name, "kernel", beta, 0.95, 0.01, resource="sm", calls=100)
        for name, beta in (("gemm", 0.3), ("flash", 0.2), ("norm", 0.1))
    ]
    idle = Share("AllReduce", "collective", 0.4, 0.8, 0.1, resource="nic")
    learning = Learning()
    for _ in range(5):
        learning.add(a_window(RANKS, profile(RANKS, [*healthy, idle])))
    longer = [replace(one, beta=float(np.max(one.beta)) * 1.3) for one in healthy]
    (verdict,) = judged([*longer, replace(idle, beta=0.2)], learning.expected).verdicts
    assert (verdict.cause, verdict.ranks) == ("contention", ())
    assert "nvidia-smi" in verdict.advice


def test_it_is_read_as_it_was_written() -> None:
    before = learned()
    after = from_json(json.loads(json.dumps(to_json(before))))
    assert after.functions.keys() == before.functions.keys()
    assert (after.jobs, after.windows) == (5, 5)
    assert to_json(after) == to_json(before)


GOOD: dict[str, Any] = to_json(Expected())
ROW = {"kind": "python", "name": "f", "file": "f.py", "beta": [0, 0.5]}


@pytest.mark.parametrize(
    "changed",
    [
        {"format": "other"}, {"version": 2}, {"functions": None}, {"functions": [7]},
        {"jobs": -1}, {"jobs": True}, {"windows": 1.5}, {"step_ns": [2, 1]},
        {"functions": [{**ROW, "beta": [0, 2]}]}, {"functions": [{**ROW, "beta": None}]},
        {"functions": [{**ROW, "beta": [0.5, 0.1]}]}, {"functions": [{**ROW, "name": 3}]},
        {"functions": [{**ROW, "mu": [0, float("nan")]}]},
        {"functions": [{**ROW, "step_ns": [0, float("inf")]}]},
        {"functions": [ROW] * 10_001},
    ],
)  # fmt: skip
def test_another_file_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidBaselineError):
        from_json({**GOOD, **changed})


@settings(max_examples=40)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_any_json_is_read_or_refused(data: Any) -> None:
    for content in (data, {**GOOD, "functions": data}, {**GOOD, "functions": [data]}):
        try:
            from_json(content)
        except InvalidBaselineError:
            continue
