"""The diagnosis JSON keeps the promise of docs/diagnosis-json.md."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from stepscope.diagnose.finding import Diagnosis, Evidence, Value, Verdict
from stepscope.report.json import to_json

from .golden import check_golden
from .samples import SAMPLES, slow_rank

PROMISED = {"schema", "job_id", "ranks", "steps", "state", "windows", "verdicts", "clocks",
            "skipped"}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_json_is_what_the_golden_file_says(name: str) -> None:
    text = json.dumps(to_json(SAMPLES[name]()), indent=2, allow_nan=False)
    check_golden(f"{name}.json", text + "\n")


@pytest.mark.parametrize("name", SAMPLES)
def test_every_key_is_always_present(name: str) -> None:
    out = to_json(SAMPLES[name]())
    assert set(out) >= PROMISED
    for verdict in out["verdicts"]:
        assert set(verdict) == {field.name for field in dataclasses.fields(Verdict)}


def test_non_finite_numbers_become_null() -> None:
    values: dict[str, Value] = {"nan": math.nan, "inf": [math.inf, 1.0], "many": 7}
    verdict = dataclasses.replace(
        slow_rank().verdicts[0], slowdown=math.inf, evidence=(Evidence("m", "d", values),)
    )
    out = to_json(dataclasses.replace(slow_rank(), verdicts=(verdict,)))
    assert out["verdicts"][0]["slowdown"] is None
    assert out["verdicts"][0]["evidence"][0]["values"] == {
        "nan": None,
        "inf": [None, 1.0],
        "many": 7,
    }


def test_numpy_scalars_do_not_break_it() -> None:
    verdict = dataclasses.replace(slow_rank().verdicts[0], ranks=(np.int32(3),))  # type: ignore[arg-type]
    diagnosis = Diagnosis("j", np.int64(8), "slow", verdicts=(verdict,), cost={"x": np.float64(1)})  # type: ignore[arg-type]
    assert json.loads(json.dumps(to_json(diagnosis)))["verdicts"][0]["ranks"] == [3]
