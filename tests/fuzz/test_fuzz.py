"""Inputs that fuzzing found, and that every parser accepts its sample."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from stepscope.errors import FormatError
from stepscope.evaluate import results

from .targets import TARGETS

INFINITE = (
    b'{"schema": 1, "results": [], "suite": "", "fast": 1, "seeds": [], "version": "",'
    b' "unfit": [], "missing": Infinity}'
)
FOUND = [
    ("results", INFINITE),
    ("results", b"[" * 100_000),
    ("job", b'{"job_id": "", "world_size": Infinity}'),
]


@pytest.mark.parametrize("name", TARGETS)
def test_samples_and_what_little_is_wrong_with_them(name: str) -> None:
    """Cut off, compressed, and with single bytes changed."""
    target, change = TARGETS[name], random.Random(name)
    sample = target.sample()
    inputs = [b"", sample, sample[: len(sample) // 2], gzip.compress(sample)]
    for _ in range(50):
        changed = bytearray(sample)
        changed[change.randrange(len(changed))] = change.randrange(256)
        inputs.append(bytes(changed))
    for data in inputs:
        target.parse(data)


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_what_was_found_stays_mended(name: str, data: bytes) -> None:
    TARGETS[name].parse(data)


def test_an_infinite_count_is_no_result(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_bytes(INFINITE)
    with pytest.raises(FormatError):
        results.read(file)
