"""The native scanner keeps the same as the slow version, whatever the bytes."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope._native import Scanner, members
from stepscope.formats.kineto.recording import _COLUMNS, scanner
from stepscope.window import NULL

from .slowly import ARGUMENTS, FIELDS, Row, Slow, number, slowly
from .traces import COLLECTIVE, event, gpu_events

CODED = {"name", "thread", "call"}


def rows(scanned: Scanner, table: str) -> list[Row]:
    """Rows of a table, with names, threads and calls in place of their numbers."""
    taken = scanned.take(table)
    values = {
        "name": [name.decode("utf-8", "replace") for name in scanned.names()],
        "thread": list(map(loaded, scanned.threads())),
        "call": [*map(loaded, scanned.calls()), None],
    }
    columns = []
    for name in _COLUMNS[table]:
        numbers = np.frombuffer(taken[name], np.int32 if name == "name" else np.int64).tolist()
        columns.append([values[name][at] for at in numbers] if name in CODED else numbers)
    return list(zip(*columns, strict=True))


def loaded(text: bytes) -> Any:
    return json.loads(text.decode("utf-8", "replace"), parse_float=number)


def scanned(text: bytes, size: int = 1 << 30) -> Scanner:
    """Everything behind the bracket of an array, in pieces of a size."""
    found = scanner()
    for at in range(0, len(text), size):
        if not found.feed(text[at : at + size]):
            break
    found.finish()
    return found


def check(text: bytes, size: int = 1 << 30) -> None:
    found, want = scanned(text, size), slowly(text)
    assert (found.unreadable, found.impossible) == (want.unreadable, want.impossible)
    got = Slow()
    for table in _COLUMNS:
        if table_rows := rows(found, table):
            got.rows[table] = table_rows
    in_time = {table: sorted(rows, key=lambda row: (row[0], -row[1]))
               for table, rows in want.rows.items()}  # fmt: skip
    assert got.rows == in_time


TEXT = st.text(alphabet='ab"\\{}[],: \n\t/\u00e9\U0001f600', max_size=12)
NUMBERS = st.integers(-(2**70), 2**70) | st.integers(-9, 9) | st.sampled_from(["7", " 12 ", "x"])
TIMES = st.decimals(-10, 10**16, places=3).map(float) | st.integers(-9, 10**17)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT | st.floats(-1e9, 1e9).map(lambda x: round(x, 3)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CATEGORIES = st.sampled_from(["cpu_op", "kernel", "user_annotation", "python_function",
                              "cuda_runtime", "ac2g", "Memcpy"])  # fmt: skip
NAMES = TEXT | st.sampled_from(["c10d::allreduce_", "nccl:send", "record_param_comms"])
ARGS = st.dictionaries(st.sampled_from(sorted(ARGUMENTS)), NUMBERS | TEXT | ANYTHING, max_size=5)
LIKELY = st.fixed_dictionaries(
    {"ph": st.just("X"), "cat": CATEGORIES, "ts": TIMES},
    optional={"name": NAMES, "dur": TIMES, "tid": NUMBERS, "pid": NUMBERS, "args": ARGS},
)
ODD = st.dictionaries(st.sampled_from(sorted(FIELDS)) | TEXT, ANYTHING, max_size=6)
EVENTS = st.lists(LIKELY | LIKELY | ODD, max_size=8)
SIZES = st.sampled_from([1, 7, 60, 1 << 30])


@settings(deadline=None)
@given(EVENTS, SIZES, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_events_of_any_kind_in_pieces_of_any_size(
    events: list[Any], size: int, indent: Any, escaped: bool
) -> None:
    text = json.dumps(events, indent=indent, ensure_ascii=escaped).encode()[1:]
    check(text, size)
    assert scanned(text, size).closed


JUNK = st.sampled_from([
    b"NaN", b"-inf", b"nan(0x1)", b"-1e309", b"1e999999999", b'"', b"\\", b"{", b"[", b"}", b"]",
    b"\xff\xfe", b"\xed\xa0\x80", b"\0", b"\n", b"null", b"tru", b"-", b"01", b"1.", b"[" * 10_000,
    b'{"a":' * 3000, b'"x"', b"99999999999999999999999", b",", b":", b'\\"', b"\\x", b"\\u12",
])  # fmt: skip
WHOLE = json.dumps(gpu_events(1)).encode()[1:]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE)), JUNK, st.integers(0, 9)), max_size=3), SIZES)
def test_damage_costs_the_same_events(damages: list[tuple[int, bytes, int]], size: int) -> None:
    text = WHOLE
    for at, junk, removed in damages:
        text = text[:at] + junk + text[at + removed :]
    check(text, max(size, 7))


def test_collectives_and_their_arguments() -> None:
    check(json.dumps(gpu_events(1, args={**COLLECTIVE, "Seq": 3})).encode()[1:])


@pytest.mark.parametrize(("written", "ns"), [
    ("1712195495502094.565", 1712195495502094565),
    ("1712195495502094.566", 1712195495502094566),
    ("1.7121954955020945e15", 1712195495502094500),
    ("0.0005", 0), ("0.0015", 2), ("0.00050000000000000000000001", 1), ("-12.345", -12345),
    ("12345678901234567890", None), ("2305843009213693.951", 2**61 - 1),
    ("2305843009213693.952", None), ("1e-400000", 0),
])  # fmt: skip
def test_times_keep_every_nanosecond(written: str, ns: int | None) -> None:
    text = f'{{"ph":"X","cat":"cuda_runtime","ts":{written}}}]'
    found = scanned(text.encode())
    assert [row[0] for row in rows(found, "runtime")] == ([] if ns is None else [ns])


def test_times_may_be_nanoseconds_already() -> None:
    text = json.dumps([event("cuda_runtime", "a", 1712195495502094565, 7)]).encode()[1:]
    assert rows(scanned(text), "runtime") == [(1712195495502094565, 7, "a", NULL)]


def test_one_damaged_time_does_not_make_the_others_nanoseconds() -> None:
    first = '{"ph":"X","cat":"cuda_runtime","ts":99999999999999999999999},'
    rest = json.dumps([event("cuda_runtime", "a", at, 1) for at in range(9)])[1:]
    found = rows(scanned((first + rest).encode(), len(first)), "runtime")
    assert found[1] == (1000, 1000, "a", NULL)


def test_of_a_name_that_comes_twice_the_last_counts() -> None:
    text = (b'{"ph":"X","cat":"cpu_op","name":"a","na\\u006de":"b","ts":1,"ts":2,'
            b'"args":{"stream":1},"args":{}}]')  # fmt: skip
    assert rows(scanned(text), "cpu") == [(2000, 0, "b", None)]


def test_half_a_surrogate_pair_is_no_text() -> None:
    assert scanned(b'{"name":"\\ud800"},{"name":"\\ud83d\\ude00"},{"x":"\\ud800"}]').unreadable == 1


def test_other_threads_run_but_do_not_meddle() -> None:
    found, events = scanner(), json.dumps(gpu_events(200)).encode()[1:-1]
    refused: list[str] = []

    def feed() -> None:
        for _ in range(20):
            try:
                found.feed(events + b",")
            except ValueError as cause:
                refused.append(str(cause))

    threads = [threading.Thread(target=feed) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(refused) <= {"a scanner serves one thread at a time"}
    assert found.kept == (80 - len(refused)) * len(gpu_events(200))


def test_members_of_an_object() -> None:
    text = b' {"a": 1, "b": {"a": [2]}, "c": "\\u0041", "a": 3 } '
    assert members(text, ("a", "b", "c", "d")) == {"a": b"3", "b": b'{"a": [2]}', "c": b'"\\u0041"'}


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"a":1', b'{"a":1}x', b'{"a":1,}', b"{1:2}"])
def test_what_is_no_object_has_no_members(text: bytes) -> None:
    with pytest.raises(ValueError, match="no JSON object"):
        members(text, ("a",))


def test_tables_and_arguments_that_there_are_not() -> None:
    with pytest.raises(ValueError, match="no table is called wrong"):
        Scanner({"cpu_op": "wrong"}, ())
    with pytest.raises(TypeError):
        scanner().feed("text")  # type: ignore[arg-type]
