"""Posts samples from a thread of its own; who offers them never waits."""

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
"""Lines of `Name: value`. Not a flag: command lines are there for everybody to see."""
_TIMEOUT_S = 10.0
_LAST_WORDS_S = 10.0
"""How long the end of a process waits for a server that hangs; one that is away is no wait."""
_OURS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
    "User-Agent": f"stepscope/{version('stepscope')}",
}


class RefusedError(Exception):
    """The server understood and will not take it: trying again would not help."""


class UnreachableError(Exception):
    """Nobody answered, or the server asks to be asked later: after `seconds` where it says so."""

    def __init__(self, why: str, seconds: float | None = None) -> None:
        super().__init__(why)
        self.seconds = seconds


Post = Callable[[bytes], None]


class RemoteWriter:
    """Sends what it is offered, as soon as the server takes it."""

    def __init__(
        self, url: str, environment: Mapping[str, str] = os.environ, *,
        post: Post | None = None, most: int = MOST_SAMPLES,
    ) -> None:  # fmt: skip
        """Raises UsageError: the URL or the headers make no sense."""
        endpoint = Endpoint(url, environment)
        self._shown = endpoint.shown
        self._post = post or endpoint.post
        self._outbox = Outbox(most)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._told_refusal = False
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
        """Samples that were given up since the start."""
        return self._outbox.dropped

    def offer(self, samples: Sequence[Sample]) -> None:
        """Takes samples to be sent; the oldest go where too many wait."""
        with self._lock:
            self._outbox.add(samples)
        self._wake.set()

    def close(self) -> None:
        """Sends what waits, if that takes no longer than ten seconds."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(_LAST_WORDS_S)

    def turn(self) -> float:
        """Sends one request; says in how many seconds the next may follow. 0: at once."""
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
            # while the server is away, new samples are no reason to try sooner
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
        level = logging.DEBUG if self._told_refusal else logging.WARNING
        logger.log(level, "%s refuses %d samples: %s", self._shown, len(samples), error)
        self._told_refusal = True

    def _sent(self, samples: Sequence[Sample]) -> None:
        with self._lock:
            again = self._outbox.in_trouble
            self._outbox.sent(samples)
        if again:
            logger.info("%s takes metrics again; %d were lost", self._shown, self.dropped)


class Endpoint:
    """A URL, and how to post to it. Name and password in a URL become basic authentication."""

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
    """Specified: 5xx is to be tried again, 4xx not; 429 asks for patience."""
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
