"""`stepscope diagnose --follow`: looks again and again, and shows what changes."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from stepscope.cli import terminal
from stepscope.cli.output import print_json, write_html
from stepscope.cli.sources import Recording, open_source
from stepscope.diagnose.finding import Diagnosis
from stepscope.errors import SourceError, StoreError, UsageError
from stepscope.report.json import to_json
from stepscope.report.series import buckets, sparkline
from stepscope.report.text import headline_style, render_headline, to_ascii

if TYPE_CHECKING:
    from stepscope.cli.series import Announcer
    from stepscope.diagnose.past import Past
    from stepscope.store.history import History
    from stepscope.window import Window

logger = logging.getLogger(__name__)

DEAR_SECONDS = 2.0
"""Of the processor, for a look: that of some hundred ranks is cheaper, and taken whenever due."""
LOOK_SECONDS = 60.0
"""However steady a job is, all of it is looked at every minute."""
LATE_STEPS, LATE_SECONDS = 3.0, 15.0
"""Steps come in flushes, into a bucket every five seconds: three of them without any are odd."""


def import_what_looks() -> None:
    """What the first look would import: no part of what a look costs again and again."""
    from stepscope.diagnose import runner  # noqa: F401
    from stepscope.store import reader  # noqa: F401


class Watch:
    """One job looked at repeatedly. Of what was seen no row is held: a large job has millions, and
    the next look needs the room."""

    def __init__(self, source: str, history: History | None = None) -> None:
        """With a history older rows are forgotten, so that a long job can be followed."""
        self.source = source
        self._reader = open_source(source, history)
        self._seen = -1
        self._told: set[str] = set()
        self._last: Diagnosis | None = None
        self._hang_sought_in = -1
        self._hang: Diagnosis | None = None
        self._past: Past | None = None
        self._pulse: Pulse | None = None
        self._cost = 0.0
        self._looked = 0.0

    @property
    def is_recording(self) -> bool:
        """Whether it was read whole and will not change."""
        return isinstance(self._reader, Recording)

    def look(self) -> Diagnosis:
        """The diagnosis of what is there now; the same object while nothing changed."""
        from stepscope.diagnose.past import Past
        from stepscope.diagnose.runner import diagnose

        used = time.process_time()
        window = self._reader.refresh()
        self._warn()
        self._past = self._past or Past()
        if self._last is None or self._reader.version != self._seen:
            self._last = self._past.joined(diagnose(window))
            self._seen = self._reader.version
            self._cost, self._looked = time.process_time() - used, time.monotonic()
        return self._last

    def may_wait(self) -> bool:
        """Whether a look that is dear would find what the last one found."""
        if self._cost < DEAR_SECONDS or time.monotonic() - self._looked > LOOK_SECONDS:
            return False
        self._pulse = self._pulse or Pulse(self.source)
        return self._pulse.is_steady()

    def look_once(self) -> Diagnosis:
        """The diagnosis of what is there now, in less memory: nothing is kept for another look."""
        from stepscope.diagnose.runner import diagnose

        return diagnose(self._read())

    def _read(self) -> Window:
        window = self._reader.read()
        self._warn()
        return window

    def hang(self) -> Diagnosis | None:
        """The hang in which what is there now ends, on top of what the last look found.

        Much cheaper than a whole look; None where nothing hangs.
        """
        from stepscope.diagnose.runner import find_hang

        window = self._reader.refresh()
        if self._reader.version != self._hang_sought_in:
            self._hang_sought_in, self._hang = self._reader.version, find_hang(window)
        return None if self._hang is None else self._with_last(self._hang)

    def _with_last(self, hang: Diagnosis) -> Diagnosis:
        if self._last is None:
            return hang
        others = (verdict for verdict in self._last.verdicts if verdict.kind != "hang")
        return replace(self._last, state="hang", verdicts=(*hang.verdicts, *others))

    def _warn(self) -> None:
        """Each problem of the source once, not at every look."""
        for problem in self._reader.problems:
            if problem not in self._told:
                self._told.add(problem)
                logger.warning("%s", " ".join(problem.split()))


class Screen(Protocol):
    """Where a followed diagnosis appears."""

    def show(self, diagnosis: Diagnosis) -> None: ...

    def close(self, last: Diagnosis) -> None: ...


def follow_job(
    source: str, interval: float, as_json: bool, html: Path | None,
    announcer: Announcer | None = None,
) -> Diagnosis:  # fmt: skip
    """Follows a job until Ctrl-C; returns the last diagnosis.

    Raises:
        SourceError: the source could not be read at the first look; later ones are retried.
        UsageError: there is nothing to follow.
        KeyboardInterrupt: Ctrl-C before there was any diagnosis.
    """
    from stepscope.memory import keep_freed_memory
    from stepscope.store.history import History

    keep_freed_memory()
    watch = Watch(source, History())
    if watch.is_recording:
        raise UsageError(f"{source} is a recording that does not grow; leave out --follow")
    with terminal.progress(f"reading {source}"):
        last = first = watch.look()
    screen = _screen(source, as_json)
    try:
        for last in itertools.chain((first,), changes(watch, interval, first)):
            screen.show(last)
            if announcer is not None:
                announcer.show(last)
            if html is not None:
                write_html(last, html)
    except KeyboardInterrupt:
        logger.info("interrupted")
    finally:
        if announcer is not None:
            announcer.close()
        screen.close(last)
    return last


class Pulse:
    """Whether a whole look can wait: the job's steps take what they did, and still come.

    Reads the table `steps` only. Where nobody records steps it is never so.
    """

    def __init__(self, source: str, clock: Callable[[], float] = time.monotonic) -> None:
        from stepscope.store.history import History
        from stepscope.store.reader import JobReader

        self._reader = JobReader(source, History(rows=1), ("steps",))
        self._clock = clock
        self._newest: int | None = None
        self._came = clock()

    def is_steady(self) -> bool:
        """Raises SourceError, StoreError: the job cannot be read."""
        from stepscope.diagnose.pulse import is_steady, newest_step, step_ns

        window = self._reader.refresh()
        newest, now = newest_step(window), self._clock()
        if newest != self._newest:
            self._newest, self._came = newest, now
        late = now - self._came > max(LATE_SECONDS, LATE_STEPS * step_ns(window) / 1e9)
        return not late and is_steady(window)


def changes(
    watch: Watch, interval: float, seen: Diagnosis, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Diagnosis]:
    """Every diagnosis after `seen`, for ever; a source that fails in between is tried again."""
    while True:
        sleep(interval)
        try:
            now = seen if watch.may_wait() else watch.look()
        except (SourceError, StoreError) as error:
            logger.warning("%s; trying again", error)
            continue
        if now is not seen:
            seen = now
            yield now


def _screen(source: str, as_json: bool) -> Screen:
    if as_json:
        return JsonLines()
    return LiveView(source) if terminal.is_terminal() else Lines()


class JsonLines:
    """One compact JSON object per line whenever the diagnosis says something new."""

    def __init__(self) -> None:
        self._last: object = None

    def show(self, diagnosis: Diagnosis) -> None:
        said = {**to_json(diagnosis), "cost": None}
        if said != self._last:
            self._last = said
            print_json(diagnosis)

    def close(self, last: Diagnosis) -> None:
        """The last line stands."""


class Lines:
    """The headline with the time, whenever the culprits change; the report at the end."""

    def __init__(self) -> None:
        self._last: object = None

    def show(self, diagnosis: Diagnosis) -> None:
        blamed = (diagnosis.state, [identity(v) for v in diagnosis.verdicts])
        if blamed != self._last:
            self._last = blamed
            now = datetime.now(timezone.utc).strftime("%H:%M:%S UTC")
            print(f"{now}  {encodable(render_headline(diagnosis))}", flush=True)

    def close(self, last: Diagnosis) -> None:
        terminal.print_report(last)


def identity(verdict: object) -> tuple[object, ...]:
    """What makes a verdict another one; its numbers may drift from look to look."""
    keys = ("kind", "cause", "ranks", "hosts", "group", "phase")
    return tuple(getattr(verdict, key) for key in keys)


def encodable(text: str) -> str:
    return text if terminal.knows_unicode() else to_ascii(text)


class LiveView:
    """Headline and step times, redrawn in place; the report at the end."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._live = Live(console=Console(), auto_refresh=False, transient=True)
        self._live.start()

    def show(self, diagnosis: Diagnosis) -> None:
        now = datetime.now(timezone.utc).strftime("%H:%M:%S UTC")
        points = buckets(diagnosis.series, self._live.console.width - 1)
        lines = (
            Text(render_headline(diagnosis), style=headline_style(diagnosis)),
            Text(encodable(sparkline(points)), no_wrap=True),
            Text(f"last change at {now}; following {self._source}, Ctrl-C ends", style="dim"),
        )
        self._live.update(Group(*lines), refresh=True)

    def close(self, last: Diagnosis) -> None:
        self._live.stop()
        terminal.print_report(last)
