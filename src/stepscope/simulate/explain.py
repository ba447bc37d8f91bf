"""Describes every fault and every case for `--list-faults` and `--list-cases`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from typing import Any

from stepscope.simulate.cases import CASES
from stepscope.simulate.faults import FAULTS, Fault

_KEYS = {"onset": "from", "ranks": "ranks", "hosts": "hosts"}
_WHEN = ("onset", "until", "every", "lasting", "chance")
_HEAD = (
    "A fault is written NAME:KEY=VALUE,KEY=VALUE. Several values are joined with +, for example "
    "ranks=3+4. Every fault accepts these keys: from (its first step, default 0), until (the first "
    "step without it), every and lasting (it is active only in the first M of every N steps), and "
    "chance (the probability, 0 to 1, that it is active in such a step)."
)


def explain_faults(width: int) -> str:
    """One paragraph per fault."""
    blocks = [textwrap.fill(_HEAD, width), *(_explain(one, width) for one in FAULTS.values())]
    return "\n\n".join(blocks) + "\n"


def explain_cases(width: int) -> str:
    """One paragraph per case."""
    blocks = []
    for name, case in CASES.items():
        lines = [f"{case.story}.", f"From: {case.source}. {case.values['ranks']} ranks.",
                 f"Faults: {'; '.join(case.faults)}."]  # fmt: skip
        blocks.append("\n".join([name, *_indented(lines, width)]))
    return "\n\n".join(blocks) + "\n"


def _indented(lines: list[str], width: int) -> list[str]:
    return [textwrap.fill(line, width, initial_indent="  ", subsequent_indent="    ",
                          break_on_hyphens=False) for line in lines]  # fmt: skip


def _explain(fault: type[Fault], width: int) -> str:
    keys = ", ".join(_keys(fault)) or "no keys of its own"
    lines = [f"{fault.help}.", f"Keys: {keys}.", f"From: {fault.family}."]
    return "\n".join([fault.name, *_indented(lines, width)])


def _keys(fault: type[Fault]) -> Iterator[str]:
    """The fault's own keys, and the common time keys for which it has its own default."""
    usual = {field.name: field.default for field in fields(Fault)}
    for field in fields(fault):
        if field.name not in _WHEN or field.default != usual[field.name]:
            yield f"{_KEYS.get(field.name, field.name)}{_default(field)}"


def _default(field: Field[Any]) -> str:
    if field.default is MISSING:
        return " (needed)"
    plain = field.default
    if plain in (None, (), ""):
        return ""
    return f"={plain:g}" if isinstance(plain, float) else f"={str(plain).lower()}"
