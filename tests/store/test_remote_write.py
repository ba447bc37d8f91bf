"""Remote write requests as Prometheus specifies them, and unreachable servers."""

from __future__ import annotations

import http.server
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import UsageError
from stepscope.store.remote_write import RemoteWriter, Sample
from stepscope.store.remote_write.encode import request_body, write_request
from stepscope.store.remote_write.outbox import Outbox
from stepscope.store.remote_write.sender import HEADERS_VARIABLE, RefusedError, UnreachableError

URL = "http://localhost:1/api/v1/write"


def _message_class() -> Any:
    """Prometheus' WriteRequest, for protobuf's own decoder."""
    file = descriptor_pb2.FileDescriptorProto(name="remote.proto", package="prometheus")
    one, many = 1, 3
    for name, fields in {
        "Label": [("name", 1, 9, one, ""), ("value", 2, 9, one, "")],
        "Sample": [("value", 1, 1, one, ""), ("timestamp", 2, 3, one, "")],
        "TimeSeries": [("labels", 1, 11, many, "Label"), ("samples", 2, 11, many, "Sample")],
        "WriteRequest": [("timeseries", 1, 11, many, "TimeSeries")],
    }.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label, of in fields:
            type_name = f".prometheus.{of}" if of else None
            message.field.add(
                name=field, number=number, type=kind, label=label, type_name=type_name
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("prometheus.WriteRequest"))


WriteRequest = _message_class()


def sample(value: float = 1.0, time_ms: int = 1000, **labels: str) -> Sample:
    return Sample("stepscope_test", tuple(labels.items()), value, time_ms)


def test_exact_bytes() -> None:
    body = write_request([Sample("m", (("a", "b"),), 1.0, 300)])
    label = b"\x0a\x0d\x0a\x08__name__\x12\x01m" + b"\x0a\x06\x0a\x01a\x12\x01b"
    value = b"\x12\x0c\x09\x00\x00\x00\x00\x00\x00\xf0\x3f\x10\xac\x02"
    assert body == b"\x0a" + bytes([len(label + value)]) + label + value


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a_total", "b"]),
            st.dictionaries(st.sampled_from("xyzA"), st.text(min_size=1), max_size=3),
            st.floats(allow_nan=False),
            st.integers(0, 2**62),
        ),
        max_size=8,
    )
)
def test_protobuf_reads_what_was_written(rows: list[Any]) -> None:
    samples = [Sample(n, tuple(sorted(labels.items())), v, t) for n, labels, v, t in rows]
    body = request_body(samples)
    read = WriteRequest.FromString(_unpacked(body, len(write_request(samples))))
    seen = []
    for series in read.timeseries:
        pairs = [(label.name, label.value) for label in series.labels]
        assert pairs == sorted(pairs), "the specification wants them sorted"
        name = dict(pairs)["__name__"]
        rest = tuple((k, v) for k, v in pairs if k != "__name__")
        seen += [(name, rest, one.value, one.timestamp) for one in series.samples]
    wanted = [(s.name, _as_utf8(s.labels), s.value, s.time_ms) for s in samples]
    assert sorted(map(repr, seen)) == sorted(map(repr, wanted))


def _as_utf8(labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((k, v.encode("utf-8", "replace").decode()) for k, v in labels)


def _unpacked(body: bytes, size: int) -> bytes:
    return bytes(pa.decompress(body, size, codec="snappy", asbytes=True))


def test_the_oldest_are_dropped_and_counted() -> None:
    box = Outbox(most=3)
    box.add([sample(value) for value in (1, 2, 3, 4, 5)])
    assert [one.value for one in box.next()] == [3, 4, 5] and box.dropped == 2


def test_samples_dropped_while_being_sent_are_not_removed_twice() -> None:
    box = Outbox(most=3)
    box.add([sample(1), sample(2), sample(3)])
    on_their_way = box.next()
    box.add([sample(4), sample(5)])
    box.sent(on_their_way)
    assert [one.value for one in box.next()] == [4, 5] and box.dropped == 2


def test_it_waits_ever_longer_and_as_long_as_it_is_asked_to() -> None:
    box = Outbox()
    assert [box.failed() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    box.sent([])
    assert (box.failed(20.0), box.failed(0.1), box.failed(10_000.0)) == (20, 2, 60)


class Server:
    """Answers as a test wants, without a network."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.bodies: list[bytes] = []

    def __call__(self, body: bytes) -> None:
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        self.bodies.append(body)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [f"{r.levelname} {r.getMessage()}" for r in caplog.records if r.levelno >= logging.INFO]


def test_an_unreachable_server_is_logged_once_and_gets_all_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    server = Server(UnreachableError("nobody"), UnreachableError("nobody"), None)
    writer = RemoteWriter(URL, {}, post=server)
    writer.offer([sample(1), sample(2)])
    assert [writer.turn(), writer.turn(), writer.turn()] == [1.0, 2.0, 0.0]
    assert server.bodies == [request_body([sample(1), sample(2)])] and writer.dropped == 0
    assert told(caplog) == [
        f"WARNING cannot send metrics to {URL}: nobody; trying again",
        f"INFO {URL} accepts metrics again; 0 samples were lost",
    ]


def test_what_a_server_refuses_is_counted_and_not_offered_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server(RefusedError("status 400"), RefusedError("status 400"), None)
    writer = RemoteWriter(URL, {}, post=server)
    for value in range(3):
        writer.offer([sample(value)])
        writer.turn()
    assert server.bodies == [request_body([sample(2)])] and writer.dropped == 2
    assert told(caplog) == [f"WARNING {URL} rejects 1 samples: status 400"]


def test_large_loads_go_in_requests_of_two_thousand() -> None:
    server = Server()
    writer = RemoteWriter(URL, {}, post=server)
    writer.offer([sample(value) for value in range(4500)])
    while len(server.bodies) < 3:
        assert writer.turn() == 0.0
    writer.turn()
    assert len(server.bodies) == 3


def test_the_thread_sends_what_it_is_offered_and_the_rest_at_the_end() -> None:
    server = Server()
    writer = RemoteWriter(URL, {}, post=server).start()
    writer.offer([sample(1)])
    writer.close()
    assert server.bodies == [request_body([sample(1)])]


def test_closing_does_not_wait_for_an_unreachable_server() -> None:
    server = Server(*[UnreachableError("nobody")] * 9)
    writer = RemoteWriter(URL, {}, post=server).start()
    writer.offer([sample(1)])
    writer.close()
    assert server.bodies == [] and len(server.answers) >= 7


@pytest.fixture
def listener() -> Iterator[tuple[str, list[Any], list[int]]]:
    """A real server: its URL, the requests it got, the statuses it is to answer."""
    got: list[Any] = []
    statuses: list[int] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, dict(self.headers), body))
            self.send_response(statuses.pop(0) if statuses else 204)
            self.send_header("Retry-After", "7")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Silence."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}", got, statuses
    server.shutdown()
    thread.join()
    server.server_close()


def test_headers_of_the_specification_and_ones_own(listener: Any) -> None:
    place, got, _ = listener
    environment = {HEADERS_VARIABLE: "X-Scope-OrgID: team-a\nX-Other: b"}
    writer = RemoteWriter(f"http://me:p%40ss@{place}/api/v1/write?x=1", environment)
    writer.offer([sample()])
    assert writer.turn() == 0.0
    [(path, headers, body)] = got
    assert path == "/api/v1/write?x=1" and body == request_body([sample()])
    assert headers["Content-Encoding"] == "snappy"
    assert headers["Content-Type"] == "application/x-protobuf"
    assert headers["X-Prometheus-Remote-Write-Version"] == "0.1.0"
    assert headers["X-Scope-Orgid"] == "team-a" and headers["X-Other"] == "b"
    assert headers["Authorization"] == "Basic bWU6cEBzcw=="


def test_which_answers_are_worth_another_try(listener: Any) -> None:
    place, got, statuses = listener
    statuses += [503, 429, 400, 204]
    writer = RemoteWriter(f"http://{place}/write", {})
    writer.offer([sample(1)])
    assert [writer.turn(), writer.turn(), writer.turn()] == [7.0, 7.0, 0.0]
    writer.offer([sample(2)])
    assert writer.turn() == 0.0
    assert len(got) == 4 and writer.dropped == 1


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://x/y", "http://", "/api/v1/write"])
def test_urls_that_make_no_sense(url: str) -> None:
    with pytest.raises(UsageError, match="cannot send metrics to"):
        RemoteWriter(url, {})


def test_headers_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match=HEADERS_VARIABLE):
        RemoteWriter(URL, {HEADERS_VARIABLE: "Bearer abc"})
