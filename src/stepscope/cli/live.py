"""The live view of `stepscope run`: the state of the job, and verdicts as soon as they are found.

On a terminal the command writes to a pseudo-terminal, and its lines scroll above a small block of
ours. Otherwise the command's output is not touched, and we print plain lines to standard error.
"""

from __future__ import annotations

import fcntl
import logging
import os
import pty
import select
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.text import Text

from stepscope.cli import terminal
from stepscope.cli.exits import print_fault, print_stderr
from stepscope.cli.follow import Watch, import_diagnosis
from stepscope.cli.output import write_html
from stepscope.cli.screens import encodable, identity
from stepscope.cli.waiting import wait_for
from stepscope.diagnose.finding import Diagnosis, Verdict
from stepscope.errors import StepscopeError
from stepscope.memory import release_freed_memory, return_freed_memory_here
from stepscope.report import story
from stepscope.report.plain import printable, without_roots
from stepscope.report.series import buckets, sparkline
from stepscope.report.text import headline_style, render_headline, render_text
from stepscope.report.units import count, duration, ranks
from stepscope.store.layout import safe_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stepscope.cli.notifications import Notifications
    from stepscope.cli.series import Announcer

logger = logging.getLogger(__name__)

DIAGNOSE_SECONDS = 4.0
"""Shortest time between two full diagnoses."""
CONFIRM_SECONDS = 2.0
"""The next diagnosis comes sooner to confirm a slowdown, or the end of a hang."""
PAUSE_FACTOR = 100.0 / len(os.sched_getaffinity(0))
"""Pause after a diagnosis per CPU second that it took, so that diagnoses use at most 1 % of the
processors. CPU time counts: on a busy host a diagnosis takes longer without using more of it."""
STATUS_SECONDS = 10.0
QUICK_HANG_SCORE = 0.95
"""A hang with this confidence is reported without a full diagnosis: a stopped process has 0.97, and
any other hang at most 0.9 (`methods/hang.py`)."""
STACK_FRAMES = 8
"""Innermost frames shown of a rank that hangs; the report shows more."""
POLL_SECONDS = 0.25
"""How often to check for files of other hosts; this host's processor sends notifications."""
FAULTY_SECONDS = 60.0
"""Until the next diagnosis after an internal error: other data may not lead to it. Our choice."""
WAITING = "waiting for the first steps"
_SEARCH_SECONDS = 1.0
"""How often to look for new host folders."""


class Live:
    """Diagnoses one job's folder while its command runs."""

    def __init__(
        self, root: str, job: str, ask_for_stacks: Callable[[], None],
        announcer: Announcer | None = None, notifications: Notifications | None = None,
        topology: Path | None = None,
    ) -> None:  # fmt: skip
        """With a topology, the switches of that file are known to all diagnoses."""
        self._announcer = announcer
        self._notifications = notifications
        self._ask_for_stacks = ask_for_stacks
        self._requested_stacks = self._hanging = self._is_faulty = False
        self._hung: Verdict | None = None
        self._previous: set[tuple[object, ...]] = set()
        self._root, self._job, self._topology = root, job, topology
        self.source = f"{root.rstrip('/')}/{safe_name(job)}"
        self._screen = _Terminal() if _on_terminal() else _Plain()
        self._watch: Watch | None = None
        self._due = self._full_due = self._polled = 0.0
        self._open_ops = _OpenOps(Path(self.source) / "comm_ops")

    @property
    def output(self) -> int | None:
        """The descriptor that the command should write to; None: it inherits ours."""
        return self._screen.output

    def wait(self, process: subprocess.Popen[bytes]) -> bool:
        """Waits briefly, diagnoses when it is due; returns True once the command has exited."""
        stored = self._pause(process)
        if stored or time.monotonic() - self._polled >= POLL_SECONDS:
            self._polled, stalled = time.monotonic(), self._open_ops.any
            self._open_ops.look()
            if self._open_ops.any or (stalled and self._hanging):
                self._due = self._polled  # a hang may have begun or ended
        if time.monotonic() >= self._due:
            self._try_diagnose(self._open_ops.any)
        return process.poll() is not None

    def stop(self) -> None:
        self._screen.stop()
        if self._notifications is not None:
            self._notifications.close()

    def _pause(self, process: subprocess.Popen[bytes]) -> bool:
        """Waits for an event or the next poll; returns whether the processor has stored rows."""
        notifications = self._notifications
        descriptor = None if notifications is None else notifications.descriptor
        ready = wait_for(process, (*self._screen.descriptors, descriptor), POLL_SECONDS)
        if ready.intersection(self._screen.descriptors):
            self._screen.take()
        return notifications is not None and descriptor in ready and notifications.received()

    def report(self, html: Path | None, notes: Sequence[str] = ()) -> None:
        """Prints the final report, of everything that was recorded, and keeps its evidence.

        Whatever goes wrong in it, the exit status stays that of the command.

        Args:
            notes: what the recording lacks. It follows the report, or is why there is none.
        """
        try:
            trouble = self._report(html)
        except Exception as error:  # noqa: BLE001  an internal error is ours, not the command's
            print_fault(error)
            trouble = None
        for note in notes:
            print_stderr(note)
        if trouble is not None:
            print_stderr("no report" if notes else f"no report: {trouble}")

    def _report(self, html: Path | None) -> StepscopeError | None:
        """Returns why there is nothing to report."""
        try:
            watch = Watch(self.source, topology=self._topology)
            diagnosis = watch.look()
        except StepscopeError as error:
            return error
        if html is not None:
            write_html(diagnosis, html)
        text = render_text(diagnosis, terminal.width(), color=terminal.has_color())
        print(f"\n{text}", file=sys.stderr)
        print(f"stepscope: the job folder is {self.source}", file=sys.stderr)
        self._remember(watch, diagnosis)
        return None

    def _remember(self, watch: Watch, diagnosis: Diagnosis) -> None:
        """Adds what the job says about its devices to the ledger of the store."""
        from stepscope.cli.evidence import remember

        try:
            trouble = remember(self._root, self._job, watch.window(), diagnosis)
        except StepscopeError as error:  # its rows cannot be read any more
            trouble = f"not added to the device ledger: {error}"
        if trouble is not None:
            print_stderr(trouble)

    def _try_diagnose(self, stalled: bool) -> None:
        """Diagnoses; an internal error ends neither the command nor our watch over it."""
        try:
            self._diagnose(stalled)
        except Exception as error:  # noqa: BLE001  whatever it is, the command goes on
            if not self._is_faulty:
                print_fault(error)
            self._is_faulty, self._watch = True, None
            self._full_due = self._due = time.monotonic() + FAULTY_SECONDS

    def _diagnose(self, stalled: bool) -> None:
        started = time.monotonic()
        if stalled and started < self._full_due and self._hang_is_handled():
            self._due = self._full_due
            return
        import_diagnosis()
        cpu_start = time.process_time()
        diagnosis = self._diagnosis()
        pause = max(DIAGNOSE_SECONDS, PAUSE_FACTOR * (time.process_time() - cpu_start))
        if diagnosis is not None:
            self._hanging = diagnosis.state == "hang"
            confirmed = self._confirmed(diagnosis)
            if confirmed != diagnosis or (self._hanging and not stalled):
                pause = CONFIRM_SECONDS
            if confirmed.verdicts or not diagnosis.verdicts:
                self._show(confirmed)
        release_freed_memory()
        self._full_due = self._due = time.monotonic() + pause

    def _confirmed(self, diagnosis: Diagnosis) -> Diagnosis:
        """Leaves out slowdowns that the previous diagnosis did not find.

        Many diagnoses in a row find more slowdowns by chance than a single one does.
        """
        kept = tuple(
            verdict
            for verdict in diagnosis.verdicts
            if verdict.kind != "slowdown" or identity(verdict) in self._previous
        )
        self._previous = {identity(verdict) for verdict in diagnosis.verdicts}
        return diagnosis.with_verdicts(kept)

    def _show(self, diagnosis: Diagnosis) -> None:
        if self._hung is not None and (said := goes_on(self._hung, diagnosis)):
            self._screen.say(said)
            self._hung = None
        hung = (one for one in diagnosis.verdicts if one.kind == "hang" and not one.ended)
        self._hung = next(hung, self._hung)
        self._screen.show(diagnosis)
        if self._announcer is not None:
            self._announcer.show(diagnosis)
        self._request_stacks(diagnosis)

    def _request_stacks(self, diagnosis: Diagnosis) -> None:
        """At the first verdict, has py-spy's pending samples stored: they may name the function."""
        if diagnosis.verdicts and not self._requested_stacks:
            self._requested_stacks = True
            threading.Thread(target=self._ask_for_stacks, daemon=True).start()

    def _hang_is_handled(self) -> bool:
        """Whether no full diagnosis is needed now: nothing hangs, or the hang is already reported.

        A stopped process is proof enough to report; any other hang needs a full diagnosis.
        """
        if self._hanging:
            return True
        hang = self._hang()
        if hang is None:
            return True
        self._hanging = hang.verdicts[0].confidence >= QUICK_HANG_SCORE
        if self._hanging:
            self._show(hang)
        return self._hanging

    def _hang(self) -> Diagnosis | None:
        try:
            return self._opened().hang()
        except StepscopeError:
            return None

    def _opened(self) -> Watch:
        """Opens the job; raises SourceError while nothing of it is stored."""
        if self._watch is None:
            from stepscope.store.history import History

            return_freed_memory_here()
            self._watch = Watch(self.source, History(), self._topology)
        return self._watch

    def _diagnosis(self) -> Diagnosis | None:
        """None while there is no job folder yet, or its store does not answer."""
        try:
            return self._opened().look()
        except StepscopeError as error:
            logger.info("no diagnosis yet: %s", error)
            self._watch = None
            return None


class _OpenOps:
    """Checks for the files in which hosts list long-outstanding operators (local folders only)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hosts: list[Path] = []
        self._searched = -_SEARCH_SECONDS
        self.any = False
        """Whether the last check found such a file."""

    def look(self) -> None:
        now = time.monotonic()
        if now - self._searched >= _SEARCH_SECONDS:
            self._searched = now
            self._hosts = list(self._folder.glob("*"))
        self.any = any((host / "open.parquet").exists() for host in self._hosts)


class _Plain:
    """Prints lines on standard error; the command inherits our output."""

    output: int | None = None
    descriptors: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._status_at = 0.0
        self._shown: object = ()

    def take(self) -> None:
        """Nothing to do: the command does not write through us."""

    def show(self, diagnosis: Diagnosis) -> None:
        culprits = tuple(identity(verdict) for verdict in diagnosis.verdicts)
        if culprits != self._shown:
            self._shown = culprits
            for line in _lines(diagnosis):
                print_stderr(line)
        elif time.monotonic() - self._status_at > STATUS_SECONDS:
            self._status_at = time.monotonic()
            print_stderr(status(diagnosis))

    def say(self, line: str) -> None:
        print_stderr(line)

    def stop(self) -> None:
        """Nothing to do."""


class _Terminal:
    """Shows the command's output, and a block of ours below it."""

    def __init__(self) -> None:
        self._ours, self.output = pty.openpty()
        _copy_window_size(self._ours)
        self.descriptors = (self._ours,)
        self._partial = b""
        self._diagnosis: Diagnosis | None = None
        self._console = Console(stderr=True)
        self._live = RichLive(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, diagnosis: Diagnosis) -> None:
        self._diagnosis = diagnosis
        self._draw()

    def say(self, line: str) -> None:
        self._print(f"stepscope: {line}".encode())

    def stop(self) -> None:
        while select.select([self._ours], [], [], 0)[0]:
            if not self.take():
                break
        self._live.stop()
        if self._partial:
            self._print(self._partial)

    def take(self) -> bool:
        """Prints complete lines; an incomplete last line (a progress bar) is shown in our block."""
        try:
            data = os.read(self._ours, 65536)
        except OSError:
            return False
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._print(line.rstrip(b"\r"))
        self._draw()
        return bool(data)

    def _print(self, line: bytes) -> None:
        shown = line.rsplit(b"\r", 1)[-1].decode(errors="replace")
        self._live.console.print(Text.from_ansi(shown), soft_wrap=True, highlight=False)

    def _draw(self) -> None:
        self._live.update(Group(*self._block()), refresh=True)

    def _block(self) -> Iterator[RenderableType]:
        if self._partial:
            yield Text.from_ansi(self._partial.rsplit(b"\r", 1)[-1].decode(errors="replace"))
        diagnosis = self._diagnosis
        if diagnosis is None:
            yield Text(f"stepscope: {WAITING}", style="dim")
            return
        points = buckets(diagnosis.series, self._console.width - 1)
        yield Text(encodable(sparkline(points)), no_wrap=True)
        yield Text(f"stepscope: {status(diagnosis)}", style=headline_style(diagnosis), no_wrap=True)
        for verdict in diagnosis.verdicts[:2]:
            yield Text(f"  {printable(verdict.summary)}")
            yield Text(f"  do next: {printable(verdict.advice)}", style="dim")


def status(diagnosis: Diagnosis) -> str:
    """The job in one line: step, step time, state."""
    series = diagnosis.series
    if not series.steps:
        return WAITING
    recent = sorted(series.duration_ns[-20:])
    middle = duration(recent[len(recent) // 2])
    state = render_headline(diagnosis)
    if diagnosis.verdicts:
        state = f"{story.status(diagnosis)}; {count(len(diagnosis.verdicts), 'culprit')}"
    lasts = f", {middle} per step" if any(recent) else ""  # the first one may not have ended
    return f"step {series.steps[-1]}{lasts}; {state}"


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield status(diagnosis)
    for verdict in diagnosis.verdicts:
        yield f"  {verdict.summary}"
        yield f"  do next: {without_roots(verdict.advice)}"
        yield from (f"  stack: {without_roots(frame)}" for frame in verdict.stack[-STACK_FRAMES:])


def goes_on(hung: Verdict, now: Diagnosis) -> str:
    """`rank 1 goes on after 8.2 s`, once the step is complete in which it hung; else nothing."""
    step, series = (hung.steps or (None, None))[0], now.series
    if now.state == "hang" or step is None or step not in series.steps:
        return ""
    lasted = duration(series.duration_ns[series.steps.index(step)])
    verb = "go" if len(hung.ranks) > 1 else "goes"
    who = ranks(hung.ranks) if hung.ranks else "the job"
    return f"{who} {verb} on after {lasted} in step {step}"


def _on_terminal() -> bool:
    return terminal.is_terminal() and sys.stderr.isatty()


def _copy_window_size(descriptor: int) -> None:
    """Gives the command our window size, so that its progress bars fit."""
    size = fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, bytes(8))
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, size)
