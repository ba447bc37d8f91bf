"""`kill -USR2 PID`: a rank profiles its next steps, without a processor and without a command.

The handler is installed after the first optimizer step, and only if nobody else has one: a script
or framework that handles the signal keeps it, also if it installs its handler later.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import tempfile
import threading
from pathlib import Path
from types import FrameType

from stepscope.collect.guard import guarded
from stepscope.collect.session import Session
from stepscope.collect.windows import Windows
from stepscope.wire.profiling import LONGEST_SECONDS, Profiled, RankProfile

STEPS_VARIABLE = "STEPSCOPE_PROFILE_STEPS"
"""How many optimizer steps a signal profiles; `0`: the signal is left alone."""
STEPS = 5
"""Enough to see what differs between steps, and a trace of some MB. Our choice."""
SIGNAL = signal.SIGUSR2


def install(session: Session, windows: Windows) -> None:
    """Installs the handler after the first step, unless the user switched it off."""
    steps = _steps()
    if steps <= 0:
        return
    asked = _Asked(session, windows, steps)

    def first_step() -> None:
        if threading.current_thread() is threading.main_thread():
            session.after_step.remove(first_step)
            asked.install()

    session.after_step.append(first_step)


class _Asked:
    def __init__(self, session: Session, windows: Windows, steps: int) -> None:
        self._session = session
        self._windows = windows
        self._steps = steps
        self._numbers = itertools.count()

    @guarded
    def install(self) -> None:
        if signal.getsignal(SIGNAL) == signal.SIG_DFL:
            signal.signal(SIGNAL, self._handle)

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        if self._session.enabled:
            self._begin()
        else:  # a forked child: it ends, as without us
            signal.signal(SIGNAL, signal.SIG_DFL)
            os.kill(os.getpid(), SIGNAL)

    @guarded
    def _begin(self) -> None:
        first = self._session.shared.ordinal + 2  # the calls of the step before it are counted
        folder = tempfile.mkdtemp(prefix="stepscope-profile-")
        path = Path(folder) / f"rank{self._session.who.rank}.json.gz"
        window = f"signal-{next(self._numbers)}"
        request = RankProfile(window, first, first + self._steps - 1, LONGEST_SECONDS, str(path))
        self._windows.begin(request, _say)


def _say(reply: Profiled) -> None:
    """Writes the result as one line; a signal may have interrupted a `print` of the script."""
    if reply.trouble is None:
        what = f"profiled optimizer steps {reply.first_ordinal} to {reply.last_ordinal}"
        what += f": {reply.path}" + ("" if reply.note is None else f" ({reply.note})")
    else:
        what = f"not profiled: {reply.trouble}"
        with contextlib.suppress(OSError):
            Path(reply.path).parent.rmdir()
    with contextlib.suppress(OSError):
        os.write(2, f"stepscope: {what}\n".encode(errors="replace"))


def _steps() -> int:
    text = os.environ.get(STEPS_VARIABLE, "")
    return int(text) if text.isdecimal() else STEPS
