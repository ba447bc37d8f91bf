"""Kernels of a real trace: its five steps are alike, so a mode's count is five of each place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stepscope.formats.kineto import read
from stepscope.processor.compress.modes import Histograms, Modes, as_published

STEPS = 5
FOLDER = Path(__file__).parents[2].parent / "shared/traces/hta-single-rank/ns_resolution_trace"

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="the real traces are not here")


@pytest.fixture(scope="module")
def modes() -> tuple[Modes, Modes]:
    """Out of histograms, and as published."""
    kernels = read(next(FOLDER.glob("*.gz"))).window.tables["kernels"]
    key = np.stack([kernels.strings("kernel").codes, kernels.ints("stream")])
    keys, groups = np.unique(key, axis=1, return_inverse=True)
    numbers, durations = groups.reshape(-1).astype(np.uint32), kernels.ints("duration_ns")
    histograms = Histograms()
    histograms.add(numbers, durations)
    return histograms.modes(), as_published(numbers, durations, keys.shape[1])[0]


def whole(modes: Modes) -> float:
    """The share of modes that hold all executions of some places, of five steps."""
    return float((modes["count"] % STEPS == 0).mean())


def test_modes_are_places_in_the_step(modes: tuple[Modes, Modes]) -> None:
    divided, published = modes
    assert divided["count"].sum() == published["count"].sum() > 5000
    assert whole(divided) > 0.9 > whole(published)


def test_modes_are_narrow(modes: tuple[Modes, Modes]) -> None:
    nine_tenths = [np.quantile(rows["p99_ns"] / rows["p50_ns"], 0.9) for rows in modes]
    assert nine_tenths[0] < 1.25 and nine_tenths[1] > 1.5
