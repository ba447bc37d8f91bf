"""Shows the successive diagnoses of a followed job: as JSON, as lines, or redrawn in place."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from stepscope.cli import terminal
from stepscope.cli.output import print_json
from stepscope.diagnose.finding import Diagnosis
from stepscope.report.json import to_json
from stepscope.report.series import buckets, sparkline
from stepscope.report.text import headline_style, render_headline, to_ascii


class Screen(Protocol):
    """Shows the successive diagnoses of a followed job."""

    def show(self, diagnosis: Diagnosis) -> None: ...

    def close(self, last: Diagnosis) -> None: ...


def screen_for(source: str, as_json: bool) -> Screen:
    if as_json:
        return JsonLines()
    return LiveView(source) if terminal.is_terminal() else Lines()


class JsonLines:
    """Prints one JSON object per line whenever the diagnosis changes."""

    def __init__(self) -> None:
        self._last: object = None

    def show(self, diagnosis: Diagnosis) -> None:
        content = {**to_json(diagnosis), "cost": None}
        if content != self._last:
            self._last = content
            print_json(diagnosis)

    def close(self, last: Diagnosis) -> None:
        """Nothing to do."""


class Lines:
    """Prints time and headline whenever the culprits change, and the report at the end."""

    def __init__(self) -> None:
        self._last: object = None

    def show(self, diagnosis: Diagnosis) -> None:
        culprits = (diagnosis.state, [identity(v) for v in diagnosis.verdicts])
        if culprits != self._last:
            self._last = culprits
            now = datetime.now(timezone.utc).strftime("%H:%M:%S UTC")
            print(f"{now}  {encodable(render_headline(diagnosis))}", flush=True)

    def close(self, last: Diagnosis) -> None:
        terminal.print_report(last)


def identity(verdict: object) -> tuple[object, ...]:
    """What identifies a verdict across diagnoses; its numbers may drift."""
    keys = ("kind", "cause", "ranks", "hosts", "group", "phase")
    return tuple(getattr(verdict, key) for key in keys)


def encodable(text: str) -> str:
    return text if terminal.knows_unicode() else to_ascii(text)


class LiveView:
    """Redraws headline and step times in place; prints the report at the end."""

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
            Text(f"last change at {now}; following {self._source}, Ctrl-C to stop", style="dim"),
        )
        self._live.update(Group(*lines), refresh=True)

    def close(self, last: Diagnosis) -> None:
        self._live.stop()
        terminal.print_report(last)
