"""Parses Slurm's `topology.conf`: lines of `SwitchName=… Nodes=…` or `SwitchName=… Switches=…`.

Keys may be in any case, `#` begins a comment, `\\` at the end of a line continues it
(topology.conf(5)). Other keys of a switch, such as `LinkSpeed`, are ignored, as Slurm does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from stepscope.formats.topology.fabric import Line

SWITCH, NODES, SWITCHES = "switchname", "nodes", "switches"
BLOCK = "blockname"
_PAIR = re.compile(r"(\w+)=(\S*)")


def is_conf(text: str) -> bool:
    """Whether a text has lines of `topology.conf`, rather than YAML or JSON."""
    return any(_PAIR.match(line) for line in map(str.strip, text.splitlines()))


def parse_conf(text: str) -> list[Line]:
    """The switches in a file.

    Raises:
        ValueError: a line is malformed; the message begins with its number.
    """
    found = []
    for number, line in _lines(text):
        pairs = _pairs(line, number)
        if BLOCK in pairs or "blocksizes" in pairs:
            raise ValueError(f"line {number}: blocks of Slurm's topology/block plugin name no "
                             "switches; list SwitchName=… Nodes=… lines instead")  # fmt: skip
        if SWITCH not in pairs:
            raise ValueError(f"line {number}: expected SwitchName=…, found {line.split()[0]!r}")
        if not pairs.get(NODES) and not pairs.get(SWITCHES):
            raise ValueError(f"line {number}: switch {pairs[SWITCH]!r} has neither Nodes=… nor "
                             "Switches=…")  # fmt: skip
        where = f"line {number}"
        found.append(Line(where, pairs[SWITCH], pairs.get(NODES, ""), pairs.get(SWITCHES, "")))
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Logical lines without comments, with the number of their first line."""
    number, kept = 0, ""
    for at, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        number = number or at
        kept += line if kept.endswith(",") or not kept else f" {line}"
        if kept.endswith("\\"):
            kept = kept[:-1].rstrip()
            continue
        if kept:
            yield number, kept
        number, kept = 0, ""
    if kept:
        yield number, kept


def _pairs(line: str, number: int) -> Mapping[str, str]:
    pairs = {}
    for word in line.split():
        match = _PAIR.fullmatch(word)
        if match is None:
            raise ValueError(f"line {number}: expected KEY=VALUE, found {word[:60]!r}")
        pairs[match[1].lower()] = match[2]
    return pairs
