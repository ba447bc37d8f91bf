"""Requests from and to the processor: invalid ones are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import WireError
from stepscope.wire.control import (
    Hurry,
    decode_counted,
    decode_counters,
    decode_flush,
    decode_flushed,
    decode_follow,
    decode_hurry,
    decode_parent,
    encode_flush,
    encode_flushed,
    encode_follow,
    encode_hurry,
    encode_parent,
)
from stepscope.wire.frames import PacketKind, pack

HUGE = "9" * 400
"""An integer that JSON has and that no float holds."""


def _asked(payload: bytes, kind: PacketKind = PacketKind.CONTROL) -> Hurry:
    return decode_hurry(pack(kind, payload, 1, 0))


@given(st.floats(0.0, 60.0))
def test_what_is_asked_arrives(seconds: float) -> None:
    assert _asked(encode_hurry(Hurry(seconds))) == Hurry(seconds)


def test_a_processor_of_another_version_may_ask_for_what_we_do_not_know() -> None:
    assert _asked(b'{"sample": "kernels"}') == Hurry(0.0)


@pytest.mark.parametrize("seconds", ["-1", "1e400", "600", HUGE])
def test_the_duration_of_a_hurry_is_limited(seconds: str) -> None:
    assert 0.0 <= _asked(f'{{"hurry_seconds": {seconds}}}'.encode()).seconds <= 60.0


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[1]", b"\xff", b'{"hurry_seconds": true}', b'{"hurry_seconds": NaN}',
                b'{"hurry_seconds": null}', b"[" * 60_000],
)  # fmt: skip
def test_what_is_no_request_is_refused(payload: bytes) -> None:
    with pytest.raises(WireError):
        _asked(payload)


def test_a_packet_of_another_kind_is_no_request() -> None:
    with pytest.raises(WireError, match="NAMES"):
        _asked(json.dumps({}).encode(), PacketKind.NAMES)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    for bytes_ in (data, pack(PacketKind.CONTROL, data, 1, 0)):
        try:
            assert decode_hurry(bytes_).seconds <= 60.0
        except WireError:
            continue


@given(st.text())
def test_a_job_that_is_to_be_stored_arrives_by_name(job: str) -> None:
    assert decode_flush(memoryview(encode_flush(job))) == job


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"flush": 3}', b'{"hurry_seconds": 1}'])
def test_other_requests_are_not_flushes(payload: bytes) -> None:
    assert decode_flush(memoryview(payload)) is None


@given(st.text())
def test_a_job_that_is_to_be_followed_is_not_one_to_be_stored(job: str) -> None:
    asked = memoryview(encode_follow(job))
    assert (decode_follow(asked), decode_flush(asked)) == (job, None)


@given(st.text(), st.none() | st.text())
def test_the_reply_has_the_reason_of_a_failure(job: str, trouble: str | None) -> None:
    assert decode_flushed(memoryview(encode_flushed(job, trouble))) == trouble


@pytest.mark.parametrize("payload", [b"", b"7", b"{}", b'{"flush": "demo"}'])
def test_what_is_no_answer_is_refused(payload: bytes) -> None:
    with pytest.raises(WireError):
        decode_flushed(memoryview(payload))


def test_a_rate_that_no_float_holds_is_no_request() -> None:
    asked = f'{{"counters_hz": {HUGE}, "seconds": 1}}'.encode()
    assert decode_counters(memoryview(asked)) is None


@pytest.mark.parametrize("samples", ["Infinity", "NaN"])
def test_a_count_without_bound_is_no_answer(samples: str) -> None:
    said = f'{{"counted": {{"samples": {samples}, "lost": 0, "troubles": []}}}}'
    with pytest.raises(WireError):
        decode_counted(memoryview(said.encode()))


@pytest.mark.parametrize("stopped", [None, 7])
def test_a_launcher_reports_stopped_children(stopped: int | None) -> None:
    told = decode_parent(memoryview(encode_parent(42, stopped)))
    assert told == (42, stopped is not None)


@pytest.mark.parametrize("payload", [b"", b"[1]", b"{}", b'{"parent": true}', b'{"parent": "1"}'])
def test_other_requests_are_not_about_children(payload: bytes) -> None:
    assert decode_parent(memoryview(payload)) is None
