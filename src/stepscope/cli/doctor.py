"""`stepscope doctor`: reports what can be recorded on this machine."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.cli import exits, terminal

if TYPE_CHECKING:
    from stepscope.doctor import Check

_SIGNS = {"works": "✓", "absent": "·", "blocked": "✗"}
_PLAIN_SIGNS = {"works": "+", "absent": "-", "blocked": "!"}
_INDENT = 14

_EXAMPLES = """Examples:

- `stepscope doctor`

- `stepscope doctor --python /opt/venv/bin/python --store /shared/runs`

- `stepscope doctor --json | jq '.checks[] | select(.state == "blocked")'`
"""


def register(app: typer.Typer) -> None:
    app.command("doctor", epilog=_EXAMPLES)(doctor)


def doctor(
    python: Annotated[
        str, typer.Option(metavar="PATH", help="The Python interpreter of the training job.")
    ] = sys.executable,
    store: Annotated[
        str, typer.Option(metavar="FOLDER_OR_URL", help="Where job folders will be written.")
    ] = "stepscope-runs",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> int:
    """Check what stepscope can record on this machine, and how to fix what it cannot.

    Exit status: 0 nothing is blocked, 1 something is blocked.
    """
    from stepscope.doctor import State, examine, this_machine
    from stepscope.doctor.checks import facts

    machine = this_machine(python, store)
    checks = examine(machine)
    print(_as_json(checks, facts(machine)) if as_json else "\n".join(_lines(checks)))
    blocked = any(check.state == State.BLOCKED for check in checks)
    return exits.FOUND if blocked else exits.NOTHING_FOUND


def _as_json(checks: Iterable[Check], facts: Mapping[str, str]) -> str:
    body = {"schema": 1, "checks": [asdict(check) for check in checks], "facts": dict(facts)}
    return json.dumps(body, indent=2)


def _lines(checks: Iterable[Check]) -> Iterator[str]:
    signs = _SIGNS if terminal.knows_unicode() else _PLAIN_SIGNS
    for check in checks:
        head = f"{signs[check.state.value]} {check.name}"
        yield from _wrapped(f"{check.state.value}: {check.found}", head)
        yield from _wrapped(f"needed for: {check.gives}")
        if check.advice is not None:
            yield from _wrapped(f"> {check.advice}")


def _wrapped(text: str, head: str = "") -> list[str]:
    return textwrap.wrap(
        text if terminal.knows_unicode() else text.encode("ascii", "replace").decode(),
        terminal.width(), initial_indent=head.ljust(_INDENT), subsequent_indent=" " * _INDENT,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
