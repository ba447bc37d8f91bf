"""The live view of `stepscope run`: state while the job runs, the verdict as soon as there is one.

On a terminal the command writes into a pseudo-terminal; its lines scroll above a small block of
ours. Elsewhere the command's output is not touched, and plain lines go to standard error.
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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.text import Text

from stepscope.cli import terminal
from stepscope.cli.exits import complain
from stepscope.cli.follow import Watch, encodable, identity, import_what_looks
from stepscope.cli.output import write_html
from stepscope.cli.waiting import wait_for
from stepscope.diagnose.finding import Diagnosis
from stepscope.errors import StepscopeError
from stepscope.report.series import buckets, sparkline
from stepscope.report.text import headline_style, render_headline, render_text
from stepscope.report.units import count, duration
from stepscope.store.layout import safe_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.cli.news import News
    from stepscope.cli.series import Announcer

logger = logging.getLogger(__name__)

LOOK_SECONDS = 4.0
CONFIRM_SECONDS = 2.0
"""A suspicion is looked at again sooner, and so is a hang whose operators have ended."""
BUDGET = 100.0
"""A look may use the processor for a hundredth of the time until the next: 1 % of one core,
outside the ranks. On a busy host it takes longer than that, and is no more of a burden for it."""
STATUS_SECONDS = 10.0
SURE = 0.95
"""A hang seen with this confidence is told before a whole look: 0.97 is a stopped process, 0.9 the
most that is given to any other (`methods/hang.py`)."""
STACK_FRAMES = 8
"""Innermost frames of a rank that hangs; the report has more."""
POLL_SECONDS = 0.25
"""How often the files of other hosts are asked after; this host's processor says what it stored."""
_SEARCH_SECONDS = 1.0
"""How often hosts are sought that had nothing open before."""


class Live:
    """Watches one job's folder while its command runs."""

    def __init__(
        self, root: str, job: str, ask_for_stacks: Callable[[], None],
        announcer: Announcer | None = None, news: News | None = None,
    ) -> None:  # fmt: skip
        self._announcer = announcer
        self._news = news
        self._ask_for_stacks = ask_for_stacks
        self._asked = self._hanging = False
        self._suspected: set[tuple[object, ...]] = set()
        self.source = f"{root.rstrip('/')}/{safe_name(job)}"
        self._screen = _Terminal() if _on_terminal() else _Plain()
        self._watch: Watch | None = None
        self._due = self._whole_due = self._polled = 0.0
        self._open_ops = _OpenOps(Path(self.source) / "comm_ops")

    @property
    def output(self) -> int | None:
        """Where the command should write: a descriptor, or None for our own."""
        return self._screen.output

    def wait(self, process: subprocess.Popen[bytes]) -> bool:
        """Waits a moment, looks when it is time; True once the command has ended."""
        heard = self._pause(process)
        if heard or time.monotonic() - self._polled >= POLL_SECONDS:
            self._polled, stalled = time.monotonic(), self._open_ops.any
            self._open_ops.look()
            if self._open_ops.any or (stalled and self._hanging):
                self._due = self._polled  # it may hang, or gets on
        if time.monotonic() >= self._due:
            self._look(self._open_ops.any)
        return process.poll() is not None

    def stop(self) -> None:
        self._screen.stop()
        if self._news is not None:
            self._news.close()

    def _pause(self, process: subprocess.Popen[bytes]) -> bool:
        """Until something happens, or it is time to ask; whether this host's part was stored."""
        news = None if self._news is None else self._news.descriptor
        ready = wait_for(process, (*self._screen.descriptors, news), POLL_SECONDS)
        if ready.intersection(self._screen.descriptors):
            self._screen.take()
        return self._news is not None and news in ready and self._news.heard()

    def report(self, html: Path | None) -> None:
        """The final report, of everything the job left."""
        try:
            diagnosis = Watch(self.source).look()
        except StepscopeError as error:
            complain(f"no report: {error}")
            return
        if html is not None:
            write_html(diagnosis, html)
        text = render_text(diagnosis, terminal.width(), color=terminal.has_color())
        print(f"\n{text}", file=sys.stderr)
        print(f"stepscope: the job folder is {self.source}", file=sys.stderr)

    def _look(self, stalled: bool) -> None:
        started = time.monotonic()
        if stalled and started < self._whole_due and self._told_of_hang():
            self._due = self._whole_due
            return
        import_what_looks()
        used = time.process_time()
        diagnosis = self._diagnosis()
        pause = max(LOOK_SECONDS, BUDGET * (time.process_time() - used))
        if diagnosis is not None:
            self._hanging = diagnosis.state == "hang"
            confirmed = self._confirmed(diagnosis)
            if confirmed != diagnosis or (self._hanging and not stalled):
                pause = CONFIRM_SECONDS
            if confirmed.verdicts or not diagnosis.verdicts:
                self._show(confirmed)
        self._whole_due = self._due = time.monotonic() + pause

    def _confirmed(self, diagnosis: Diagnosis) -> Diagnosis:
        """Without slowdowns that were not there at the look before: who asks every few seconds
        whether something is wrong is told so by chance more often than who asks once."""
        kept = tuple(
            verdict
            for verdict in diagnosis.verdicts
            if verdict.kind != "slowdown" or identity(verdict) in self._suspected
        )
        self._suspected = {identity(verdict) for verdict in diagnosis.verdicts}
        return replace(diagnosis, verdicts=kept)

    def _show(self, diagnosis: Diagnosis) -> None:
        self._screen.show(diagnosis)
        if self._announcer is not None:
            self._announcer.show(diagnosis)
        self._deepen(diagnosis)

    def _deepen(self, diagnosis: Diagnosis) -> None:
        """At the first verdict: samples that are still with py-spy may name the function."""
        if diagnosis.verdicts and not self._asked:
            self._asked = True
            threading.Thread(target=self._ask_for_stacks, daemon=True).start()

    def _told_of_hang(self) -> bool:
        """Whether a quick look is all that it needs now: nothing hangs, or it was told of.

        A stopped process is proof enough; of another hang, a whole look tells.
        """
        if self._hanging:
            return True
        hang = self._hang()
        if hang is None:
            return True
        self._hanging = hang.verdicts[0].confidence >= SURE
        if self._hanging:
            self._show(hang)
        return self._hanging

    def _hang(self) -> Diagnosis | None:
        try:
            return self._followed().hang()
        except StepscopeError:
            return None

    def _followed(self) -> Watch:
        """The job, from the first moment on at which there is something of it."""
        if self._watch is None:
            from stepscope.store.history import History

            self._watch = Watch(self.source, History())
        return self._watch

    def _diagnosis(self) -> Diagnosis | None:
        """None as long as there is no folder, or its store does not answer."""
        try:
            return self._followed().look()
        except StepscopeError as error:
            logger.info("not yet: %s", error)
            self._watch = None
            return None


class _OpenOps:
    """The files in which hosts say that operators are in flight for long (local folders only)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hosts: list[Path] = []
        self._sought = -_SEARCH_SECONDS
        self.any = False
        """Whether there was one at the last look."""

    def look(self) -> None:
        now = time.monotonic()
        if now - self._sought >= _SEARCH_SECONDS:
            self._sought = now
            self._hosts = list(self._folder.glob("*"))
        self.any = any((host / "open.parquet").exists() for host in self._hosts)


class _Plain:
    """Lines on standard error; the command's output goes where ours goes."""

    output: int | None = None
    descriptors: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._said = 0.0
        self._blamed: object = ()

    def take(self) -> None:
        """Nothing comes by us."""

    def show(self, diagnosis: Diagnosis) -> None:
        blamed = tuple(identity(verdict) for verdict in diagnosis.verdicts)
        if blamed != self._blamed:
            self._blamed = blamed
            for line in _lines(diagnosis):
                complain(line)
        elif time.monotonic() - self._said > STATUS_SECONDS:
            self._said = time.monotonic()
            complain(status(diagnosis))

    def stop(self) -> None:
        """Nothing is held."""


class _Terminal:
    """The command's output above, our block below."""

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

    def stop(self) -> None:
        while select.select([self._ours], [], [], 0)[0]:
            if not self.take():
                break
        self._live.stop()
        if self._partial:
            self._print(self._partial)

    def take(self) -> bool:
        """Whole lines scroll by; what follows the last one (a progress bar) joins our block."""
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
        now = self._diagnosis
        if now is None:
            yield Text("stepscope: waiting for the first steps", style="dim")
            return
        points = buckets(now.series, self._console.width - 1)
        yield Text(encodable(sparkline(points)), no_wrap=True)
        yield Text(f"stepscope: {status(now)}", style=headline_style(now), no_wrap=True)
        for verdict in now.verdicts[:2]:
            yield Text(f"  why: {verdict.summary}")
            yield Text(f"  do next: {verdict.advice}", style="dim")


def status(diagnosis: Diagnosis) -> str:
    """Step, step time, state: the job in one line."""
    series = diagnosis.series
    if not series.steps:
        return f"no steps yet, {count(diagnosis.ranks, 'rank')}"
    recent = sorted(series.duration_ns[-20:])
    middle = duration(recent[len(recent) // 2])
    said = render_headline(diagnosis)
    if diagnosis.verdicts:
        said = f"{diagnosis.state}, {count(len(diagnosis.verdicts), 'culprit')}"
    return f"step {series.steps[-1]}, {middle} per step; {said}"


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield status(diagnosis)
    for verdict in diagnosis.verdicts:
        yield f"  {verdict.summary}"
        yield f"  do next: {verdict.advice}"
        yield from (f"  stack: {frame}" for frame in verdict.stack[-STACK_FRAMES:])


def _on_terminal() -> bool:
    return terminal.is_terminal() and sys.stderr.isatty()


def _copy_window_size(descriptor: int) -> None:
    """A progress bar in the command fits our terminal."""
    size = fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, bytes(8))
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, size)
