"""Decides when counters are sampled: in windows, one at a time, and only on request.

A window begins at a job's tenth step, on all of its hosts at nearly the same time, when its ranks
profile some steps, and when a job stalls, unless one began recently. EROICA (section 4.1) profiles
for 20 s, and reads counters meanwhile.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stepscope.processor.counters.frames import Failure, Frame, Frames, Lost, Metrics, Note, Samples
from stepscope.processor.counters.rows import loss_rows, sample_rows
from stepscope.processor.counters.sampler import LIBRARY, Sampler, Wanted, command
from stepscope.processor.records.normalise import Rows
from stepscope.wire.control import Counted

logger = logging.getLogger(__name__)

WARM_STEP = 10
"""Earlier steps are slow because of compilation, caches and allocators."""
REST_SECONDS = 300.0
"""Between two windows that begin because of stalls."""
GRACE_SECONDS = 60.0
"""For children beyond the window: CUDA starts slowly if nothing keeps the driver loaded."""
LONGEST_SECONDS = 60.0
"""Of steps that are profiled: at 10 kHz a GPU's counters are 80,000 rows a second. Our choice."""
_END_SECONDS = 5.0
"""For a child to exit after it has closed its output."""
FULL_ROWS = 50_000
"""Rows after which a store is requested: a table's buffer holds four times as many, and eight GPUs
fill it in 0.3 s."""
_PIECE_BYTES = 1 << 20
_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Sink:
    """Callbacks of `Windows` into the processor."""

    jobs: Callable[[], Collection[str]]
    """Returns the jobs that run here; called when a window begins, by the thread that begins it."""
    append: Callable[[str, str, Rows], None]
    hurry: Callable[[str], None]
    step_aside: Callable[[frozenset[int]], None]
    """Makes NVML stop reading the counters of these GPUs."""


@dataclass
class _Child:
    """What one child has sent so far."""

    sampler: Sampler
    frames: Frames = field(default_factory=Frames)
    metrics: tuple[str, ...] = ()
    samples: int = 0
    lost: int = 0
    trouble: str | None = None
    ended: bool = False


class Windows:
    """Owns the children. Called from the processor's thread; each window runs on its own."""

    def __init__(
        self, host: str, gpus: int, wanted: Wanted | None, sink: Sink, *, library: Path = LIBRARY
    ) -> None:
        self._host, self._gpus, self._wanted, self._sink = host, gpus, wanted, sink
        self._library = library
        self._warm: set[str] = set()
        self._began_at = -REST_SECONDS
        self._jobs: frozenset[str] = frozenset()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def stepped(self, job: str, steps: Iterable[int]) -> None:
        """Ranks of a job finished these steps."""
        if self._wanted is None or job in self._warm:
            return
        if any(step >= WARM_STEP for step in steps):
            self._warm.add(job)
            self.begin(self._wanted)

    def profiled(self, seconds: float) -> None:
        """Ranks are about to profile, for so long at most."""
        if self._wanted is not None and not self.under_way:
            self.begin(replace(self._wanted, seconds=min(seconds, LONGEST_SECONDS)))

    def stalled(self) -> None:
        """A job has stalled."""
        if self._wanted is not None and time.monotonic() - self._began_at >= REST_SECONDS:
            self.begin(self._wanted)

    def forget(self, job: str) -> None:
        self._warm.discard(job)

    def begin(self, wanted: Wanted, answer: Callable[[Counted], None] = lambda _: None) -> None:
        """Begins a window; `answer` is called, on any thread, when it is over or cannot begin."""
        trouble = self._why_not()
        if trouble is not None:
            logger.warning("counters are not sampled: %s", trouble)
            answer(Counted(0, 0, (f"counters are not sampled: {trouble}",)))
            return
        self._began_at, self._jobs = time.monotonic(), frozenset(self._sink.jobs())
        self._thread = threading.Thread(
            target=lambda: answer(self._run(wanted)), name="stepscope-counters", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Ends a running window; its rows have been appended when this returns."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)

    @property
    def under_way(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _why_not(self) -> str | None:
        if self._gpus == 0:
            return "NVML finds no GPU on this host"
        if not self._library.exists():
            return f"{self._library.name} was not built; was a C++ compiler missing?"
        if not self._sink.jobs():
            return "no job runs here"
        return "a window is under way" if self.under_way else None

    def _run(self, wanted: Wanted) -> Counted:
        counted = self._sampled(wanted)
        for trouble in counted.troubles:
            logger.warning("%s", trouble)
        if counted.samples:
            logger.info("counters: %d samples, %d more lost", counted.samples, counted.lost)
        return counted

    def _sampled(self, wanted: Wanted) -> Counted:
        gpus = range(self._gpus)
        self._sink.step_aside(frozenset(gpus))
        try:
            children = [_Child(Sampler(gpu, command(wanted, gpu, self._library))) for gpu in gpus]
            self._listen(children, time.monotonic() + wanted.seconds + GRACE_SECONDS)
            for child in children:
                self._end(child)
            return _counted(children)
        except OSError as error:
            return Counted(0, 0, (f"counters are not sampled: {error}",))
        finally:
            self._sink.step_aside(frozenset())

    def _listen(self, children: Sequence[_Child], until: float) -> None:
        """Reads from all children until they have ended or are overdue. A child that is asked to
        exit first sends what it has."""
        with selectors.DefaultSelector() as selector:
            for child in children:
                selector.register(child.sampler.output, selectors.EVENT_READ, child)
            unstored, asked = 0, False
            while selector.get_map() and time.monotonic() < until:
                if self._stop.is_set() and not asked:
                    asked, until = True, min(until, time.monotonic() + 5.0)
                    for child in children:
                        child.sampler.end()
                for key, _ in selector.select(_LOOK_SECONDS):
                    unstored += self._read(key.data)
                    if key.data.ended:
                        selector.unregister(key.fd)
                if unstored >= FULL_ROWS:
                    self._store()
                    unstored = 0

    def _read(self, child: _Child) -> int:
        """Reads what is available; returns the number of rows."""
        piece = os.read(child.sampler.output, _PIECE_BYTES)
        child.ended = not piece
        return sum(self._take(child, frame) for frame in child.frames.feed(piece))

    def _take(self, child: _Child, frame: Frame) -> int:
        gpu = child.sampler.gpu
        match frame:
            case Metrics(names):
                child.metrics = names
            case Samples(of):
                child.samples += len(of)
                return self._append("hardware", sample_rows(self._host, gpu, child.metrics, frame))
            case Lost(samples):
                child.lost += samples
                self._append("losses", loss_rows(child.metrics, frame))
            case Failure(why):
                child.trouble = why
            case Note(text):
                logger.info("counters of gpu%d: %s", gpu, text)
        return 0

    def _append(self, table: str, rows: Rows) -> int:
        """Appends rows to every job here: GPU metrics are host-level, as NVML's are."""
        for job in self._jobs:
            self._sink.append(job, table, rows)
        return len(rows["rank"])

    def _store(self) -> None:
        for job in self._jobs:
            self._sink.hurry(job)

    @staticmethod
    def _end(child: _Child) -> None:
        """Sets the child's trouble; its own message is preferred to its exit status."""
        how = child.sampler.why_ended(_END_SECONDS if child.ended else 0.0)
        child.trouble = child.trouble or how


def _counted(children: Sequence[_Child]) -> Counted:
    """The totals of all GPUs, and one line for each distinct trouble."""
    troubled: dict[str, list[str]] = {}
    for child in children:
        if child.trouble is not None:
            troubled.setdefault(child.trouble, []).append(f"gpu{child.sampler.gpu}")
    lines = (f"counters of {', '.join(gpus)} are not sampled: {trouble}"
             for trouble, gpus in troubled.items())  # fmt: skip
    samples, lost = sum(child.samples for child in children), sum(child.lost for child in children)
    return Counted(samples, lost, tuple(lines))
