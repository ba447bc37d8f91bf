"""Parses switches from YAML or JSON, in the form of Slurm's `topology.yaml`:

    switches:
      - switch: leaf-0
        nodes: node[01-16]
      - switch: spine
        children: leaf-[0-1]

Slurm's own file, a list of topologies of which one has a `tree`, is read as it is. JSON needs no
further package; YAML needs PyYAML.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from stepscope.formats.topology.fabric import Line

MOST_SWITCHES = 1 << 16
KEYS = "switch, nodes, children"
NO_YAML = (
    "it is no topology.conf, and reading YAML needs PyYAML: pip install 'stepscope[yaml]', or "
    "write it as JSON"
)


def parse_tree(text: str) -> list[Line]:
    """The switches in a file.

    Raises:
        ValueError: it is neither YAML nor JSON, or not of this form.
    """
    listed = _switches(_loaded(text))
    if not isinstance(listed, list) or not listed:
        raise ValueError("expected a list under `switches`, of objects with the keys " + KEYS)
    if len(listed) > MOST_SWITCHES:
        raise ValueError(f"{len(listed)} switches, more than any cluster has")
    return list(_lines(listed))


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as no_json:
        try:
            import yaml
        except ImportError:
            raise ValueError(f"{NO_YAML} ({no_json})") from None
        try:
            return yaml.safe_load(text)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            where = f"line {mark.line + 1}: " if mark is not None else ""
            raise ValueError(f"{where}{error.problem}") from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ValueError(f"not YAML: {str(error)[:200]}") from None


def _switches(data: Any) -> Any:
    """The list of switches: at the top, under `tree`, or in Slurm's list of topologies."""
    if isinstance(data, list):
        trees = [one for one in data if isinstance(one, dict) and isinstance(one.get("tree"), dict)]
        default = [one for one in trees if one.get("cluster_default") is True]
        if not trees:
            return None
        if len(trees) > 1 and len(default) != 1:
            raise ValueError(f"{len(trees)} topologies have a tree: keep one in the file")
        data = (default or trees)[0]
    if isinstance(data, dict) and isinstance(data.get("tree"), dict):
        data = data["tree"]
    return data.get("switches") if isinstance(data, dict) else None


def _lines(listed: list[Any]) -> Iterator[Line]:
    for number, one in enumerate(listed, 1):
        where = f"switch {number}"
        if not isinstance(one, dict):
            raise ValueError(f"{where}: expected an object with the keys {KEYS}")
        name = one.get("switch", one.get("name"))
        if not isinstance(name, str) or not name:
            raise ValueError(f"{where}: its name (key `switch`) is missing or no text")
        nodes, children = (_text(one.get(key), key, where) for key in ("nodes", "children"))
        if not nodes and not children:
            raise ValueError(f"{where}: {name} has neither nodes nor children")
        yield Line(where, name, nodes, children)


def _text(value: Any, key: str, where: str) -> str:
    """A host list; a YAML list of names is one, too."""
    if value is None:
        return ""
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"{where}: `{key}` is neither a host list nor a list of names")
    return ",".join(names)
