"""`stepscope diagnose --follow`: diagnoses repeatedly and shows what changes."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import terminal
from stepscope.cli.output import write_html
from stepscope.cli.sources import Recording, open_source
from stepscope.cli.topology import Placed
from stepscope.diagnose.finding import Diagnosis
from stepscope.errors import SourceError, StoreError, UsageError

if TYPE_CHECKING:
    from stepscope.cli.compared import Baseline
    from stepscope.cli.series import Announcer
    from stepscope.diagnose.follow.past import Past
    from stepscope.diagnose.settings import Settings
    from stepscope.store.history import History
    from stepscope.window import Window

logger = logging.getLogger(__name__)

EXPENSIVE_SECONDS = 2.0
"""CPU time of a full diagnosis above which it may be skipped. Some hundred ranks take less."""
MAX_SKIP_SECONDS = 60.0
"""A full diagnosis runs at least once a minute, however steady the job is."""
LATE_STEPS, LATE_SECONDS = 3.0, 15.0
"""Steps arrive in flushes, every five seconds in a bucket: three empty ones are unusual."""


def import_diagnosis() -> None:
    """Imports what a diagnosis needs, so that its measured CPU time excludes the imports."""
    from stepscope.diagnose import run as runner  # noqa: F401
    from stepscope.store import reader  # noqa: F401


class Watch:
    """Diagnoses one source repeatedly.

    It keeps no rows between two diagnoses: a large job has millions, and the next one needs the
    memory.
    """

    def __init__(
        self, source: str, history: History | None = None, topology: Path | None = None,
        tables: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        """With a history, older rows are dropped, so that a long job can be followed; with tables,
        only these are read of a job folder."""
        self.source = source
        opened = open_source(source, history, tables)
        self._is_recording = isinstance(opened, Recording)
        self._reader = opened if topology is None else Placed(opened, topology)
        self._diagnosed_version = -1
        self._warned: set[str] = set()
        self._last: Diagnosis | None = None
        self._hang_version = -1
        self._hang: Diagnosis | None = None
        self._past: Past | None = None
        self._pulse: Pulse | None = None
        self._cpu_seconds = 0.0
        self._diagnosed_at = 0.0

    @property
    def is_recording(self) -> bool:
        """Whether the source is traces or dumps, which do not change."""
        return self._is_recording

    def look(self) -> Diagnosis:
        """Diagnoses the current state; returns the same object while the source has not changed."""
        from stepscope.diagnose.follow.past import Past
        from stepscope.diagnose.run import diagnose

        cpu_start = time.process_time()
        window = self._reader.refresh()
        self._warn(self._reader.problems)
        self._past = self._past or Past()
        if self._last is None or self._reader.version != self._diagnosed_version:
            self._last = self._with_unread(self._past.joined(diagnose(window)))
            self._warn([one.why for one in self._last.skipped if one.fault is not None])
            self._diagnosed_version = self._reader.version
            self._cpu_seconds = time.process_time() - cpu_start
            self._diagnosed_at = time.monotonic()
        return self._last

    def window(self) -> Window:
        """The rows as they are now: those of the last diagnosis, if the source has not changed."""
        return self._reader.refresh()

    def may_skip(self) -> bool:
        """Whether the next diagnosis is expensive and would most likely repeat the last one."""
        if self._cpu_seconds < EXPENSIVE_SECONDS:
            return False
        if time.monotonic() - self._diagnosed_at > MAX_SKIP_SECONDS:
            return False
        self._pulse = self._pulse or Pulse(self.source)
        return self._pulse.is_steady()

    def look_once(
        self, settings: Settings | None = None, baseline: Baseline | None = None
    ) -> Diagnosis:  # fmt: skip
        """Diagnoses once, in less memory: nothing is kept for another diagnosis."""
        from stepscope.diagnose.run import diagnose
        from stepscope.diagnose.settings import Settings

        settings = settings or Settings()
        if baseline is None:
            return self._with_unread(diagnose(self._read(), settings, in_place=True))
        window, healthy = baseline.beside(self._read(), self.source)
        return self._with_unread(diagnose(window, replace(settings, baseline=healthy)))

    def _with_unread(self, diagnosis: Diagnosis) -> Diagnosis:
        """The diagnosis, which also says what of the source was not read."""
        from stepscope.diagnose.finding import Skipped

        unread = (Skipped("reading", " ".join(one.split())) for one in self._reader.problems)
        return replace(diagnosis, skipped=(*diagnosis.skipped, *unread))

    def _read(self) -> Window:
        window = self._reader.read()
        self._warn(self._reader.problems)
        return window

    def hang(self) -> Diagnosis | None:
        """Looks only for a hang at the end of the recording; much cheaper than a full diagnosis.

        Adds the other verdicts of the last full diagnosis. None if nothing hangs.
        """
        from stepscope.diagnose.run import find_hang

        window = self._reader.refresh()
        if self._reader.version != self._hang_version:
            self._hang_version, self._hang = self._reader.version, find_hang(window)
        return None if self._hang is None else self._with_last(self._hang)

    def _with_last(self, hang: Diagnosis) -> Diagnosis:
        if self._last is None:
            return hang
        others = (verdict for verdict in self._last.verdicts if verdict.kind != "hang")
        return replace(self._last.with_verdicts((*hang.verdicts, *others)), state="hang")

    def _warn(self, problems: Sequence[str]) -> None:
        """Logs each problem once, not at every diagnosis."""
        for problem in problems:
            if problem not in self._warned:
                self._warned.add(problem)
                logger.warning("%s", " ".join(problem.split()))


def follow_job(
    source: str, interval: float, as_json: bool, html: Path | None,
    announcer: Announcer | None = None, topology: Path | None = None,
) -> Diagnosis:  # fmt: skip
    """Follows a job until Ctrl-C; returns the last diagnosis.

    Raises:
        SourceError: the first attempt to read the source failed; later failures are retried.
        UsageError: the source does not grow.
        KeyboardInterrupt: Ctrl-C before the first diagnosis.
    """
    from stepscope.cli.screens import screen_for
    from stepscope.memory import keep_freed_memory
    from stepscope.store.history import History

    keep_freed_memory()
    watch = Watch(source, History(), topology)
    if watch.is_recording:
        raise UsageError(f"{source} is a finished recording; leave out --follow")
    with terminal.progress(f"reading {source}"):
        last = first = watch.look()
    screen = screen_for(source, as_json)
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
    """Checks cheaply whether a job runs steadily: steps keep coming and take as long as before.

    It reads the table `steps` only; a job without recorded steps is never steady.
    """

    def __init__(self, source: str, clock: Callable[[], float] = time.monotonic) -> None:
        from stepscope.store.history import History
        from stepscope.store.reader import JobReader

        self._reader = JobReader(source, History(rows=1), ("steps",))
        self._clock = clock
        self._newest: int | None = None
        self._newest_at = clock()

    def is_steady(self) -> bool:
        """Raises SourceError or StoreError if the job cannot be read."""
        from stepscope.diagnose.follow.pulse import is_steady, newest_step, step_ns

        window = self._reader.refresh()
        newest, now = newest_step(window), self._clock()
        if newest != self._newest:
            self._newest, self._newest_at = newest, now
        late = now - self._newest_at > max(LATE_SECONDS, LATE_STEPS * step_ns(window) / 1e9)
        return not late and is_steady(window)


def changes(
    watch: Watch, interval: float, last: Diagnosis, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Diagnosis]:
    """Yields every new diagnosis after `last`, for ever; a source that fails is tried again."""
    while True:
        sleep(interval)
        try:
            new = last if watch.may_skip() else watch.look()
        except (SourceError, StoreError) as error:
            logger.warning("%s; trying again", error)
            continue
        if new is not last:
            last = new
            yield new
