"""Flight Recorder dumps of made-up ranks, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.diagnose.finding import Diagnosis, Verdict
from stepscope.diagnose.run import diagnose

from ..formats.flight_recorder.recorders import HOUR, Groups, Recorder, window_of

BACKENDS = pytest.mark.parametrize("backend", ["nccl", "gloo"])


def diagnosis_of(folder: Path, ranks: list[Recorder], age_ns: int = HOUR) -> Diagnosis:
    return diagnose(window_of(folder, ranks, age_ns))


def the_verdict(folder: Path, ranks: list[Recorder], age_ns: int = HOUR) -> Verdict:
    diagnosis = diagnosis_of(folder, ranks, age_ns)
    (verdict,) = diagnosis.verdicts
    assert diagnosis.state == "hang"
    return verdict


def without(ranks: list[Recorder], *gone: int) -> list[Recorder]:
    return [one for one in ranks if one.rank not in gone]


GRID: Groups = {
    "tp0": ("TENSOR_MODEL_PARALLEL_GROUP", (0, 1)),
    "tp1": ("TENSOR_MODEL_PARALLEL_GROUP", (2, 3)),
    "dp0": ("DATA_PARALLEL_GROUP", (0, 2)),
    "dp1": ("DATA_PARALLEL_GROUP", (1, 3)),
}
