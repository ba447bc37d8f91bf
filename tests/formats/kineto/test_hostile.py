"""Damaged files: complete events are used, the rest is one line with the file's name."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.breakdown import breakdown
from stepscope.errors import SourceError
from stepscope.formats.kineto import Reading, read, recognise

from .traces import event, gpu_events, trace, write

STACK = {"Python id": 1, "Python parent id": 1}
WHOLE = json.dumps(
    trace([*gpu_events(), event("python_function", "a.py(1): f", 1000, 900, **STACK)])
).encode()
JUNK = st.sampled_from([
    b"NaN", b"-1e309", b"1e999999999", b'"', b"\\", b"{", b"[", b"}", b"]", b"\xff\xfe", b"\0",
    b"null", b"-5", b"[" * 10_000, b'{"a":' * 3000, b'"x"', b"99999999999999999999999", b",",
])  # fmt: skip


def attempt(content: bytes, name: str = "rank0.json") -> Reading | None:
    """Reads it and, if that goes, does with it whatever is done with traces."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        recognise(path)
        try:
            reading = read(path)
        except SourceError as refused:
            assert str(path) in str(refused) and "\n" not in str(refused)
            return None
        diagnose(reading.window)
        breakdown(reading.window)
        return reading


@settings(deadline=None, max_examples=40)
@given(st.integers(0, len(WHOLE)), st.booleans())
def test_cut_off_anywhere(size: int, zipped: bool) -> None:
    whole = gzip.compress(WHOLE)
    cut = whole[: size * len(whole) // len(WHOLE)] if zipped else WHOLE[:size]
    reading = attempt(cut, "rank0.json.gz" if zipped else "rank0.json")
    if size < len(WHOLE) - 2000 and reading is not None:
        assert any("rank0.json" in line for line in reading.problems)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE)), JUNK, st.integers(0, 20)), max_size=4))
def test_damaged_anywhere(damages: list[tuple[int, bytes, int]]) -> None:
    text = WHOLE
    for at, junk, removed in damages:
        text = text[:at] + junk + text[at + removed :]
    attempt(text)


FIELDS = ("ph", "cat", "name", "ts", "dur", "tid", "pid", "args")
VALUES: list[Any] = [None, -1, 0, 1e300, -1e18, 2**70, "", "x" * 9999, [], {}, True, [[1]], "7"]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(FIELDS), st.sampled_from(VALUES)),
                max_size=8), st.data())  # fmt: skip
def test_fields_of_any_kind(changes: list[tuple[int, str, Any]], data: st.DataObject) -> None:
    events = gpu_events()
    for at, name, value in changes:
        args = events[at % len(events)]["args"]
        if name == "args" and isinstance(args, dict) and args:
            args[data.draw(st.sampled_from(sorted(args)))] = value
        else:
            events[at % len(events)][name] = value
    attempt(json.dumps(trace(events)).encode())


@pytest.mark.parametrize(("content", "said"), [
    (b"", "the file is empty"),
    (b"[" * 10_000, "no event"),
    (b'{"entries": [], "version": "2.4"}', "no list traceEvents"),
    (b'{"traceEvents": []}', "it has no event of a PyTorch profiler"),
    (b'{"traceEvents": [{"ph": "X", "name": "a", "ts": 1}]}', "it has no event"),
    (b"\x1f\x8b" + b"junk" * 9, "its gzip data is damaged"),
    (b"\x80\x04garbage", "no list traceEvents"),
])  # fmt: skip
def test_a_file_with_nothing_to_use(tmp_path: Path, content: bytes, said: str) -> None:
    path = write(tmp_path / "rank0.json", content)
    with pytest.raises(SourceError, match=said) as caught:
        read(tmp_path)
    assert str(path) in str(caught.value)


def test_a_damaged_rank_leaves_the_others(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", trace(gpu_events()))
    write(tmp_path / "rank1.json", b"")
    reading = read(tmp_path)
    assert reading.window.ranks == (0,)
    assert reading.problems[0].endswith("rank1.json: the file is empty; left out")


def test_a_cut_off_trace_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", WHOLE[: len(WHOLE) * 2 // 3])
    reading = read(tmp_path)
    assert len(reading.window.tables["kernels"]) > 4
    assert reading.problems[0].startswith("rank0.json: it is truncated; complete events are used")


EVENT = b'{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"pid":1,"tid":1}'
BOMBS = {
    "spaces": (b"", b" "),
    "zeros": (b"", b"\0"),
    "a string before the events": (b'{"schemaVersion":1,"x":"', b"x"),
    "a string after them": (b'{"traceEvents":[' + EVENT + b'],"x":"', b"x"),
    "a string as a name": (b'{"traceEvents":[' + EVENT + b',{"name":"', b"x"),
    "quotes": (b'{"traceEvents":[' + EVENT + b',{"name":"', b'\\"'),
    "spaces between events": (b'{"traceEvents":[' + EVENT + b",", b" "),
    "lists in lists": (b'{"traceEvents":[' + EVENT + b",", b"["),
    "objects in objects": (b'{"traceEvents":[' + EVENT + b",", b'{"a":'),
    "a list of numbers": (b'{"traceEvents":[' + EVENT + b",", b"1,"),
}
MEMBER_BYTES, MEMBERS = 2 << 20, 1000
MEMORY_BYTES = 1 << 30
"""Of addresses, for Python, its libraries and the reading: a bomb unpacks to twice as much."""
DEFUSED = f"""
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES}, {MEMORY_BYTES}))
from stepscope.errors import SourceError
from stepscope.formats.kineto import read, recognise
for path in sorted(Path(sys.argv[1]).iterdir()):
    recognise(path)
    try:
        print(path.name, read(path).problems)
    except SourceError as refused:
        print(refused)
"""


def test_bombs_are_defused_in_little_memory(tmp_path: Path) -> None:
    for name, (head, unit) in BOMBS.items():
        member = gzip.compress(unit * (MEMBER_BYTES // len(unit)), 1)
        (tmp_path / f"{name}.json.gz").write_bytes(gzip.compress(head) + member * MEMBERS)
    done = subprocess.run([sys.executable, "-c", DEFUSED, str(tmp_path)], timeout=120,
                          env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(BOMBS)
    for name, line in zip(sorted(f"{name}.json.gz" for name in BOMBS), said, strict=True):
        assert name in line


def test_what_cannot_be_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="missing"):
        read(tmp_path / "missing")
    with pytest.raises(SourceError, match="no traces"):
        read(tmp_path)


def test_impossible_times_are_counted(tmp_path: Path) -> None:
    backwards = event("cpu_op", "aten::add", 5, -3)
    write(tmp_path / "rank0.json", trace([*gpu_events(), backwards]))
    assert read(tmp_path).problems == (
        "rank0.json: 1 events with impossible times are left out",
    )  # fmt: skip
