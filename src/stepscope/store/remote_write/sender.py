"""Posts samples from its own thread, so that callers never wait."""

from __future__ import annotations

import base64
import logging
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from urllib.parse import unquote, urlsplit, urlunsplit

from stepscope.errors import UsageError
from stepscope.store.remote_write.encode import Sample, request_body
from stepscope.store.remote_write.outbox import MOST_SAMPLES, Outbox

logger = logging.getLogger(__name__)

HEADERS_VARIABLE = "STEPSCOPE_REMOTE_WRITE_HEADERS"
"""Lines of `Name: value`. Not a flag, because command lines are visible to all users."""
_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 10.0
"""How long a process waits at its end for a server that hangs; it does not wait for one that is
down."""
_OURS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
    "User-Agent": f"stepscope/{version('stepscope')}",
}


class RefusedError(Exception):
    """The server rejected the request: trying again would not help."""


class UnreachableError(Exception):
    """The server did not respond, or asks to retry later, after `seconds` if given."""

    def __init__(self, why: str, seconds: float | None = None) -> None:
        super().__init__(why)
        self.seconds = seconds


Post = Callable[[bytes], None]


class RemoteWriter:
    """Sends samples as soon as the server accepts them."""

    def __init__(
        self, url: str, environment: Mapping[str, str] = os.environ, *,
        post: Post | None = None, most: int = MOST_SAMPLES,
    ) -> None:  # fmt: skip
        """Raises UsageError: the URL or the headers are invalid."""
        endpoint = Endpoint(url, environment)
        self._shown = endpoint.shown
        self._post = post or endpoint.post
        self._outbox = Outbox(most)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._refusal_logged = False
        self._thread = threading.Thread(target=self._run, name="stepscope-metrics", daemon=True)

    def start(self) -> RemoteWriter:
        self._thread.start()
        return self

    @property
    def waiting(self) -> int:
        """Samples that are not sent yet."""
        return len(self._outbox)

    @property
    def dropped(self) -> int:
        """Samples dropped since the start."""
        return self._outbox.dropped

    def offer(self, samples: Sequence[Sample]) -> None:
        """Queues samples; drops the oldest if too many wait."""
        with self._lock:
            self._outbox.add(samples)
        self._wake.set()

    def close(self) -> None:
        """Sends what waits; gives up after ten seconds."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def turn(self) -> float:
        """Sends one request; returns after how many seconds the next may follow, 0: immediately."""
        with self._lock:
            samples = self._outbox.next()
        if not samples:
            return 0.0
        try:
            self._post(request_body(samples))
        except UnreachableError as error:
            return self._unreachable(error)
        except RefusedError as error:
            self._refused(samples, error)
        else:
            self._sent(samples)
        return 0.0

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        while len(self._outbox):
            pause_s = self.turn()
            # while the server is down, new samples do not shorten the wait
            if pause_s and self._stopping.wait(pause_s):
                return

    def _unreachable(self, error: UnreachableError) -> float:
        with self._lock:
            first = not self._outbox.in_trouble
            pause_s = self._outbox.failed(error.seconds)
        if first:
            logger.warning("cannot send metrics to %s: %s; trying again", self._shown, error)
        return pause_s

    def _refused(self, samples: Sequence[Sample], error: RefusedError) -> None:
        with self._lock:
            self._outbox.refused(samples)
        level = logging.DEBUG if self._refusal_logged else logging.WARNING
        logger.log(level, "%s rejects %d samples: %s", self._shown, len(samples), error)
        self._refusal_logged = True

    def _sent(self, samples: Sequence[Sample]) -> None:
        with self._lock:
            again = self._outbox.in_trouble
            self._outbox.sent(samples)
        if again:
            logger.info("%s accepts metrics again; %d samples were lost", self._shown, self.dropped)


class Endpoint:
    """A URL to post to. A name and password in it become basic authentication."""

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"cannot send metrics to {url}: want http://… or https://…, as in "
                "http://prometheus:9090/api/v1/write"
            )
        place = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit(parts._replace(netloc=place))
        self.shown = urlunsplit(parts._replace(netloc=place, query="", fragment=""))
        self._headers = {**_OURS, **_given(environment.get(HEADERS_VARIABLE, ""))}
        if parts.username is not None:
            who = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            token = base64.b64encode(who.encode()).decode()
            self._headers.setdefault("Authorization", f"Basic {token}")

    def post(self, body: bytes) -> None:
        """Raises UnreachableError, RefusedError."""
        request = urllib.request.Request(self._url, body, self._headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            raise _meaning(error) from None
        except (OSError, ValueError) as error:
            raise UnreachableError(str(getattr(error, "reason", error))) from None


def _meaning(error: urllib.error.HTTPError) -> Exception:
    """The error for a status. By the specification 5xx and 429 are retried, other 4xx are not."""
    with error:
        said = " ".join(error.read(200).decode("utf-8", "replace").split())
        asked = error.headers.get("Retry-After", "")
    why = f"status {error.code} {said}".strip()
    if error.code == 429 or error.code >= 500:
        return UnreachableError(why, float(asked) if asked.isdigit() else None)
    return RefusedError(why)


def _given(text: str) -> dict[str, str]:
    headers = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise UsageError(f"{HEADERS_VARIABLE}: want lines of `Name: value`")
        headers[name.strip()] = value.strip()
    return headers
