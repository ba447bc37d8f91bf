"""`stepscope methods`: every method of diagnosis, what it needs, and which paper it is from."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

import typer

from stepscope.cli import exits

if TYPE_CHECKING:
    from stepscope.diagnose.registry import Listed

_EXAMPLES = """Examples:

- `stepscope methods`: the table

- `stepscope diagnose JOB --method argus-l2-published`: one of them alone

- `stepscope evaluate --method argus-l2-published`: how often it is right, beside the default
"""


def register(app: typer.Typer) -> None:
    app.command("methods", epilog=_EXAMPLES)(methods)


def methods() -> int:
    """List the methods of diagnosis: which run by default, and which only by `--method NAME`.

    Detectors find who is slow or stuck; explanations say why. Each has a page of its name in
    docs/methods. Methods of other installed packages are listed, too.
    """
    from itertools import groupby

    from stepscope.cli.terminal import width
    from stepscope.diagnose.decide.rules import RULES
    from stepscope.diagnose.registry import listed

    for heading, some in groupby(listed(), key=lambda one: one.runs):
        print(heading)
        for one in some:
            print("\n".join(_lines(one, width())))
        print()
    print("Rules of blame, applied to every candidate")
    for rule in RULES:
        print(f"  {rule.number}. {rule.name}")
        print("\n".join(_indented(rule.says, width())))
    return exits.NOTHING_FOUND


def _lines(one: Listed, columns: int) -> Iterator[str]:
    """The method's name and paper, then what it finds, needs and costs."""
    yield f"  {one.name}" + (f"  ({one.paper})" if one.paper else "")
    for text in (one.finds, f"needs {one.needs}", f"cost: {one.cost}" if one.cost else ""):
        yield from _indented(text, columns)


def _indented(text: str, columns: int) -> list[str]:
    return wrap(text, columns, initial_indent="      ", subsequent_indent="      ")
