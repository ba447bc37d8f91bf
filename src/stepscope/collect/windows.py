"""Windows of synchronized profiling, on the rank's side.

A window (EROICA: Guan et al., "EROICA: Online Performance Troubleshooting for Large-scale Model
Training", section 4.1) profiles the same steps on all ranks. The processor says which optimizer
calls (ordinals) these are on this rank. The sender's thread takes the request; the training thread
starts and stops the profiler between two steps, as profilers demand; a thread of its own writes the
trace, and then the reply is sent. Without a window there is nothing of this in a step.

How much it records depends on how many Python calls a step makes (`plan`): those of the step before
the window are counted, or of half a second where it begins at once.

A window also ends after its time, when the process has grown too much, when the script starts a
profiler of its own, and at exit. Between two steps that needs the training thread: it is
interrupted between two bytecodes, as by a signal. Within an operator or a backward pass of torch
the profiler can neither begin nor end; then the thread is interrupted again, until it is elsewhere
or the step ends. A thread that is blocked outside of Python cannot be interrupted; then the reply
says so, and the processor's samples show where it is.
"""

from __future__ import annotations

import ctypes
import resource
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from stepscope.collect import plan
from stepscope.collect.guard import guarded
from stepscope.collect.plan import Plan
from stepscope.collect.session import Session
from stepscope.collect.traces import Trace, write
from stepscope.wire.profiling import Profiled, RankProfile, decode_profile, encode_profiled

MOST_GROWTH_BYTES = 4 << 30
"""A window ends when the process has grown by this much since its start: the profiler keeps its
events in memory: about 250 bytes for an operator, and 16 for a Python call while it runs, but
1.1 KB when it stops (measured; see `plan`). EROICA (section 6.4) has tens of GB per host."""
WRITE_SECONDS = 10.0
"""How long a process that ends waits for a trace that is being written. Our choice."""
MOST_LATE_SECONDS = 60.0
"""How long a window waits for operators that began in it, as sends that nobody waits for. Our
choice: a job in which nothing ends for so long hangs."""
MOMENT_SECONDS = 0.02
"""How long the training thread waits between two steps for ends that are noted a moment late, by
other threads: less than it takes to stop the profiler. Without it one of four ranks ended a step
later than the others in 9 of 30 windows (measured, gloo)."""
NEVER_ENDED = (
    "operators that began in the window did not end within a minute, and torch.profiler crashes if "
    "they end after it"
)
IN_BACKWARD = "the optimizer steps within a backward pass, where torch.profiler cannot begin"

Answer = Callable[[Profiled], None]


class Profiler(Protocol):
    """What records; `count`, `start` and `stop` are called on the training thread."""

    def why_not(self) -> str | None: ...
    def may_switch(self) -> bool:
        """Whether it may begin or end where the calling thread is within a step."""

    def is_in_backward(self) -> bool:
        """Whether the calling thread is in a backward pass, where it may neither."""

    def count(self) -> None:
        """Counts Python calls from now on."""

    def counted(self) -> int | None:
        """Ends counting; the calls, or None if they are not known. Called on any thread."""

    def start(self, aside: Callable[[], None], *, functions: bool = True) -> None: ...
    def stop(self) -> Trace: ...
    def abandon(self) -> None:
        """Records no more, but keeps what backends may still write into."""


@dataclass
class _Window:
    request: RankProfile
    answer: Answer
    ticket: list[None] = field(default_factory=lambda: [None])
    """Whoever takes it decides whether the window begins: the training or the sender's thread."""
    thread: int | None = None
    """The thread that profiles."""
    is_running: bool = False
    first: int = -1
    last: int = -1
    """The last ordinal, which the plan may have made smaller."""
    counting_at: float | None = None
    """Since when calls are counted."""
    was_counted: bool = False
    """The main thread was asked to begin, after calls were counted."""
    note: str | None = None
    start_ns: int = 0
    since_ns: int = 0
    """The same of the monotonic clock."""
    late_since: float = 0.0
    """Since when it could not end."""
    end_at: float = float("inf")
    most_bytes: int = 0
    must_end: bool = False

    def claim(self) -> bool:
        """Whether the window has neither begun nor been dropped, and is the caller's now."""
        try:
            self.ticket.pop()
        except IndexError:
            return False
        return True


class Windows:
    """At most one window at a time."""

    def __init__(self, session: Session, profiler: Profiler) -> None:
        self._session = session
        self._profiler = profiler
        self._window: _Window | None = None
        self._training_thread = session.main_thread
        self._writer: threading.Thread | None = None
        self._on_main_thread = _OnMainThread(self._interrupted)
        session.requests.append(self.take)
        session.before_close.append(self._close)

    def take(self, payload: memoryview) -> bool:
        """Takes a request of the processor; False if it is something else."""
        request = decode_profile(payload)
        if request is not None:
            self.begin(request, self._tell_processor)
        return request is not None

    def begin(self, request: RankProfile, answer: Answer) -> None:
        """Arms a window. Called on any thread; the answer may come from any other.

        A request that is repeated (by a processor that was restarted) changes nothing.
        """
        window = self._window
        if window is not None and window.request.window == request.window:
            return
        trouble = self._why_not(request)
        if trouble is not None:
            answer(_nothing(request, trouble))
            return
        self._window = _Window(request, answer, last=request.last_ordinal)
        self._session.before_flush.append(self._watch)
        self._session.after_step.append(self._stepped)
        if request.first_ordinal < 0:
            self._window.end_at = time.monotonic() + request.seconds
            self._on_main_thread.call()

    def _why_not(self, request: RankProfile) -> str | None:
        now = self._session.shared.ordinal
        if self._window is not None:
            return f"another window is open: {self._window.request.window}"
        if self._writer is not None and self._writer.is_alive():
            return "the trace of the window before is still being written"
        if 0 <= request.first_ordinal <= now:
            return f"optimizer step {request.first_ordinal} has begun already; it is {now} now"
        if request.first_ordinal < 0 and self._training_thread != self._session.main_thread:
            return "the training does not run on the main thread, so it cannot be interrupted"
        return None

    # --- on the training thread --------------------------------------------------------------

    @guarded
    def _stepped(self) -> None:
        """Called after each optimizer step while a window is open."""
        window, now = self._window, self._session.shared.ordinal
        self._training_thread = threading.get_ident()
        if window is None:
            return
        if window.ticket:
            self._maybe_start(window, now)
        elif now > window.last or time.monotonic() >= window.end_at:
            self._maybe_stop(window, now - 1)

    def _maybe_start(self, window: _Window, now: int) -> None:
        first = window.request.first_ordinal
        if now == first or (first < 0 and window.counting_at is not None):
            self._start(window, now)
        elif now == first - window.request.ordinals_per_step:
            self._count(window)
        elif now > max(first, 0) and window.claim():
            self._drop(window, f"optimizer step {max(first, 0)} had begun already; it was {now}")

    @guarded
    def _interrupted(self) -> None:
        """Called on the main thread, between two bytecodes."""
        window, now = self._window, self._session.shared.ordinal
        if window is None:
            return
        if window.ticket and window.request.first_ordinal < 0 and window.counting_at is None:
            self._count(window)
        elif not self._profiler.may_switch():
            return  # the sender's thread asks again
        elif window.ticket and window.request.first_ordinal < 0 and window.was_counted:
            self._start(window, now)
        elif not window.ticket and window.must_end:
            self._maybe_stop(window, max(now - 1, window.first))

    def _count(self, window: _Window) -> None:
        window.counting_at = time.monotonic()
        self._profiler.count()

    def _plan(self, window: _Window) -> Plan:
        request, calls = window.request, self._profiler.counted()
        if request.first_ordinal < 0:
            since = time.monotonic() - (window.counting_at or 0.0)
            return plan.at_once(calls, since, request.seconds)
        known = None if window.counting_at is None else calls
        ordinals = request.last_ordinal - request.first_ordinal + 1
        steps = -(-ordinals // request.ordinals_per_step)
        chosen = plan.by_step(known, steps, request.seconds)
        if chosen.steps < steps:
            window.last = request.first_ordinal + chosen.steps * request.ordinals_per_step - 1
        return chosen

    def _start(self, window: _Window, now: int) -> None:
        if not window.claim():
            return
        chosen = self._plan(window)
        trouble = self._profiler.why_not()
        if self._profiler.is_in_backward():
            trouble = IN_BACKWARD
        if trouble is not None:
            self._drop(window, trouble)
            return
        window.first, window.thread = now, threading.get_ident()
        window.end_at, window.note = time.monotonic() + chosen.seconds, chosen.note
        window.most_bytes = _resident_bytes() + MOST_GROWTH_BYTES
        try:
            self._profiler.start(self._step_aside, functions=chosen.functions)
        except Exception as error:
            self._drop(window, f"torch.profiler did not start: {error!r}")
            raise
        window.start_ns = time.time_ns()
        window.since_ns, window.is_running = time.monotonic_ns(), True

    def _maybe_stop(self, window: _Window, last: int) -> None:
        if not window.is_running or window.thread != threading.get_ident():
            return
        if self._profiler.is_in_backward() or self._has_open_operators(window):
            self._stop_later(window)
        else:
            self._stop(window, last)

    def _has_open_operators(self, window: _Window) -> bool:
        """Whether operators that began in the window have not ended; at its end after a moment."""
        until = time.monotonic() + (0.0 if window.must_end else MOMENT_SECONDS)
        while self._session.open_since(window.since_ns):
            if time.monotonic() >= until:
                return True
            time.sleep(MOMENT_SECONDS / 20)
        return False

    def _stop_later(self, window: _Window) -> None:
        """Once the pass is over, and operators that began in the window have ended: backends write
        into their events then, which the profiler would have freed."""
        window.must_end, now = True, time.monotonic()
        window.end_at, window.late_since = 0.0, window.late_since or now
        if now - window.late_since > MOST_LATE_SECONDS:
            self._abandon(window)

    def _abandon(self, window: _Window) -> None:
        window.is_running = False
        self._profiler.abandon()
        self._drop(window, NEVER_ENDED)

    def _stop(self, window: _Window, last: int, *, at_exit: bool = False) -> None:
        window.is_running, end_ns = False, time.time_ns()
        reply = Profiled(
            window.request.window, window.request.path, window.first, last, window.start_ns, end_ns,
            note=window.note,
        )  # fmt: skip
        try:
            trace = self._profiler.stop()
        except Exception as error:
            self._drop(window, f"torch.profiler did not stop: {error!r}")
            raise
        self._release(window)
        arguments = (trace, reply, window.answer)
        if at_exit:  # when no thread can be started any more
            _finish(*arguments)
            return
        self._writer = threading.Thread(
            target=_finish, args=arguments, name="stepscope-profile", daemon=True
        )
        self._writer.start()

    def _step_aside(self) -> None:
        """The script starts a profiler of its own: ours ends, and what it has is not complete."""
        window = self._window
        if window is not None and window.is_running and window.thread == threading.get_ident():
            window.is_running = False
            self._profiler.stop()
            self._drop(window, "the script started a profiler of its own")

    def _drop(self, window: _Window, trouble: str) -> None:
        self._release(window)
        window.answer(_nothing(window.request, trouble))

    def _release(self, window: _Window) -> None:
        if self._window is window:
            self._window = None
            if window.counting_at is not None:
                self._profiler.counted()  # it stops, if it has not
            self._session.after_step.remove(self._stepped)
            self._session.before_flush.remove(self._watch)

    # --- on the sender's thread --------------------------------------------------------------

    def _watch(self) -> None:
        """Ends a window that takes too long or too much."""
        window = self._window
        if window is None:
            return
        late = time.monotonic() - window.end_at
        if window.ticket:
            if late > 0 and window.claim():
                self._drop(window, "the training thread is in a call that does not end")
            elif window.was_counted or self._has_counted(window):
                window.was_counted = True
                self._on_main_thread.call()
        elif window.is_running and (late > 0 or _resident_bytes() > window.most_bytes):
            window.must_end = True
            window.end_at = 0.0  # if the training thread is another one, its next step ends it
            self._on_main_thread.call()

    def _has_counted(self, window: _Window) -> bool:
        """Whether a window that begins at once knows how many calls there are, since now."""
        if window.request.first_ordinal >= 0 or window.was_counted or window.counting_at is None:
            return False
        return time.monotonic() - window.counting_at >= plan.COUNT_SECONDS

    def _tell_processor(self, reply: Profiled) -> None:
        self._session.reply(encode_profiled(reply))

    def _close(self) -> None:
        """At exit: keeps what is there."""
        window = self._window
        if window is not None and window.claim():
            self._drop(window, "the process has ended")
        elif window is not None and window.is_running and window.thread == threading.get_ident():
            if self._session.open_since(window.since_ns):
                self._abandon(window)
                return
            self._stop(window, max(self._session.shared.ordinal - 1, window.first), at_exit=True)
        elif self._writer is not None:
            self._writer.join(WRITE_SECONDS)


class _OnMainThread:
    """Calls a function on the main thread, between two of its bytecodes, as a signal does."""

    def __init__(self, task: Callable[[], object]) -> None:
        def call(_: object) -> int:
            task()
            return 0

        # kept for as long as the process lives: the interpreter may call it late
        self._call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(call)

    def call(self) -> None:
        """May have no room; whoever needs it looks again."""
        ctypes.pythonapi.Py_AddPendingCall(self._call, None)


@guarded
def _finish(trace: Trace, reply: Profiled, answer: Answer) -> None:
    """Writes a trace, then replies."""
    try:
        write(trace, Path(reply.path))
    except OSError as error:
        reply = replace(reply, trouble=f"cannot write {reply.path}: {error.strerror or error}")
    answer(reply)


def _nothing(request: RankProfile, trouble: str) -> Profiled:
    return Profiled(request.window, request.path, -1, -1, 0, 0, trouble)


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - pathlib is slower
        return int(file.read().split()[1]) * resource.getpagesize()
