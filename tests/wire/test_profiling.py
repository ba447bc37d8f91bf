"""Requests to profile and their replies survive the wire; nonsense is refused, not believed."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import WireError
from stepscope.wire.profiling import (
    LONGEST_SECONDS,
    Profiled,
    ProfileOrder,
    RankProfile,
    decode_order,
    decode_profile,
    decode_profiled,
    encode_order,
    encode_profile,
    encode_profiled,
    order_name,
)

REQUEST = RankProfile("w-100", 100, 119, 60.0, "/tmp/trace.json.gz")
ORDER = ProfileOrder("w-100", 100, 119, (0, 3), 60.0, "degradation", 5_000)
REPLY = Profiled("w-100", "/tmp/trace.json.gz", 100, 119, 5_000, 9_000)


def test_a_request_and_its_reply_arrive_as_they_were_sent() -> None:
    failed = Profiled("w-100", "/tmp/t", -1, -1, 0, 0, trouble="a profiler is already running")

    assert decode_profile(memoryview(encode_profile(REQUEST))) == REQUEST
    assert decode_profiled(memoryview(encode_profiled(REPLY))) == REPLY
    assert decode_profiled(memoryview(encode_profiled(failed))) == failed


def test_an_order_in_a_job_folder_is_read_as_it_was_written() -> None:
    with_suspects = replace(ORDER, suspects=True)
    assert decode_order(encode_order(ORDER)) == ORDER
    assert decode_order(encode_order(with_suspects)) == with_suspects
    assert order_name("w-100") == "control/profile-w-100.json"


def test_an_order_of_an_earlier_version_asks_for_no_suspects() -> None:
    before = {key: value for key, value in asdict(ORDER).items() if key != "suspects"}
    assert decode_order(json.dumps(before).encode()) == ORDER


@pytest.mark.parametrize(
    "wrong",
    [{"window": "../job"}, {"window": ".."}, {"window": ""}, {"window": "w" * 101},
     {"ranks": [-1]}, {"ranks": 3}, {"ranks": ["0"]}, {"ranks": [0] * 100_001},
     {"seconds": math.inf}, {"seconds": "x"},
     {"last_step": 99}, {"why": "fun"}, {"why": []}, {"asked_ns": True}],
)  # fmt: skip
def test_an_order_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(WireError):
        decode_order(json.dumps(json.loads(encode_order(ORDER)) | wrong).encode())


@given(st.binary())
def test_any_bytes_in_the_place_of_an_order_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_order(data)


def test_other_payloads_are_for_others() -> None:
    assert decode_profile(memoryview(b'{"hurry_seconds": 1}')) is None
    assert decode_profiled(memoryview(encode_profile(REQUEST))) is None
    assert decode_profile(memoryview(b"not JSON")) is None


@pytest.mark.parametrize(
    "wrong",
    [{"seconds": math.nan}, {"seconds": 0}, {"last_ordinal": 99}, {"first_ordinal": 1.5},
     {"path": ""}, {"path": "a\0b"}, {"window": None}, {"first_ordinal": 1 << 70}],
)  # fmt: skip
def test_a_request_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    asked = json.loads(encode_profile(REQUEST))["profile"] | wrong

    with pytest.raises(WireError):
        decode_profile(memoryview(json.dumps({"profile": asked}).encode()))


def test_no_window_is_longer_than_a_rank_can_bear() -> None:
    asked = RankProfile("w", 0, 1, 1e9, "/t")

    request = decode_profile(memoryview(encode_profile(asked)))

    assert request is not None
    assert request.seconds == LONGEST_SECONDS


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
))  # fmt: skip
def test_anything_in_the_place_of_a_reply_is_refused_or_ignored(value: object) -> None:
    payload = memoryview(json.dumps({"profiled": value}).encode())
    try:
        decode_profiled(payload)
    except WireError:
        return
    assert not isinstance(value, dict)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
))  # fmt: skip
def test_any_value_in_the_place_of_an_order_is_refused(value: object) -> None:
    with pytest.raises(WireError):
        decode_order(json.dumps(value).encode())
