"""Inputs that fuzzing found, and that every parser accepts its sample."""

from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path

import pytest

from stepscope.errors import FormatError
from stepscope.evaluate import results

from . import corpus
from .ended import HUNG, ended
from .mutate import in_place, other_json
from .targets import TARGETS

INFINITE = (
    b'{"schema": 1, "results": [], "suite": "", "fast": 1, "seeds": [], "version": "",'
    b' "unfit": [], "missing": Infinity}'
)
TRACE_OF_RANK_LIST = (
    b'{"distributedInfo": {"rank": [], "world_size": {}}, "traceEvents": [{"ph": "X",'
    b' "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 5}]}'
)
FOUND = [
    ("results", INFINITE),
    ("results", b"[" * 100_000),
    ("kineto", TRACE_OF_RANK_LIST),
    ("job", b'{"job_id": "", "world_size": Infinity}'),
]


@pytest.mark.parametrize("name", TARGETS)
def test_samples_and_what_little_is_wrong_with_them(name: str) -> None:
    """Cut off, compressed, and with bytes or values of JSON changed."""
    target, change = TARGETS[name], random.Random(name)
    samples = target.samples()
    for sample in samples:
        for data in (sample, sample[: len(sample) // 2], gzip.compress(sample)):
            target.parse(data)
        for _ in range(1 + 50 // len(samples)):
            target.parse(in_place(sample, change))
            target.parse(other_json(sample, change) or b"")
    target.parse(b"")


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_kept_from_earlier_runs(name: str) -> None:
    inputs = list(corpus.kept(name))
    assert inputs, "python -m tests.fuzz TARGET --keep makes them"
    for data in inputs:
        TARGETS[name].parse(data)


def test_an_archive_holds_the_smallest_inputs_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "ARCHIVES", tmp_path)
    monkeypatch.setattr(corpus, "MOST_BYTES", 5_000)
    inputs = [random.Random(size).randbytes(size) for size in (4_000, 10, 2_000, 10)]
    assert corpus.keep("job", inputs) == 2
    assert list(corpus.kept("job")) == [inputs[1], inputs[2]]
    first = (tmp_path / "job.tar.xz").read_bytes()
    corpus.keep("job", reversed(inputs))
    assert (tmp_path / "job.tar.xz").read_bytes() == first


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_what_was_found_stays_mended(name: str, data: bytes) -> None:
    TARGETS[name].parse(data)


def test_an_infinite_count_is_no_result(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_bytes(INFINITE)
    with pytest.raises(FormatError):
        results.read(file)


def test_a_fuzzer_that_hangs_once_is_run_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ran = tmp_path / "ran"
    hangs_once = (
        f"import pathlib, time; ran = pathlib.Path({str(ran)!r}); first = not ran.exists(); "
        "ran.touch(); first and time.sleep(3600)"
    )
    assert ended([sys.executable, "-c", hangs_once, "-max_total_time=0"], grace_s=2.0) == 0
    said = capfd.readouterr().err
    assert "State" not in said and "(sleeping)" in said and "did not end within 2 s" in said


def test_a_fuzzer_that_hangs_twice_fails() -> None:
    sleeps = "import time; time.sleep(3600)"
    assert ended([sys.executable, "-c", sleeps, "-max_total_time=0.5"], grace_s=0.5) == HUNG
