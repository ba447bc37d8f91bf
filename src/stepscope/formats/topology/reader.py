"""Reads a topology file, whatever its form."""

from __future__ import annotations

from pathlib import Path

from stepscope.errors import FormatError, SourceError
from stepscope.formats.topology.fabric import Tree
from stepscope.formats.topology.slurm_conf import is_conf, parse_conf
from stepscope.formats.topology.tree_yaml import parse_tree

MOST_BYTES = 16 << 20
"""A cluster of a hundred thousand nodes, one by one, is a quarter of this."""


def read(path: Path) -> Tree:
    """The switches in a file.

    Raises:
        SourceError: it cannot be read.
        FormatError: it is malformed; the message has the line.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise FormatError(f"{path} has over {MOST_BYTES >> 20} MiB: no topology file has")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"cannot read the topology {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FormatError(f"{path} is no text, hence no topology") from None
    try:
        return parse(text)
    except ValueError as error:
        raise FormatError(f"cannot read the topology {path}: {error}") from None


def parse(text: str) -> Tree:
    """The switches in a text.

    Raises:
        ValueError: it is malformed.
    """
    lines = parse_conf(text) if is_conf(text) else parse_tree(text)
    if not lines:
        raise ValueError("it names no switch")
    return Tree.of(lines)
