"""The control groups of a process that may have a quota of processor time: its own and its parents.

Version 2 has one tree, version 1 a tree for each controller; a machine may have both. Paths in
`/proc/PID/cgroup` begin at the root of the reader's namespace, which in a container is mounted
where the whole tree is elsewhere. See cgroups(7) and cgroup_namespaces(7).
"""

from __future__ import annotations

import re
from pathlib import Path

STATISTICS = "cpu.stat"
_ESCAPED = re.compile(r"\\([0-7]{3})")


def quota_files(pid: int, proc: Path = Path("/proc")) -> tuple[Path, ...]:
    """The `cpu.stat` files of a process, its own group first; none where nothing is mounted."""
    try:
        mounts = (proc / "self/mounts").read_text(encoding="utf-8", errors="replace")
        groups = (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    roots = _roots(mounts)
    found = [file for line in groups.splitlines() for file in _files(line, roots)]
    return tuple(file for file in found if file.exists())


def _roots(mounts: str) -> dict[str, Path]:
    """Where the trees are mounted: `` for version 2, `cpu` for the controller of version 1."""
    roots: dict[str, Path] = {}
    for line in mounts.splitlines():
        _, place, kind, options, *_ = line.split(" ")
        if kind == "cgroup2":
            roots.setdefault("", Path(_plain(place)))
        elif kind == "cgroup" and "cpu" in options.split(","):
            roots.setdefault("cpu", Path(_plain(place)))
    return roots


def _plain(place: str) -> str:
    """A path with blanks as they are, and not as octal numbers."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), place)


def _files(line: str, roots: dict[str, Path]) -> list[Path]:
    """Of one line `NUMBER:CONTROLLERS:PATH`, in version 2 `0::PATH`."""
    _, controllers, path = line.split(":", 2)
    tree = "cpu" if "cpu" in controllers.split(",") else controllers
    if tree not in roots:
        return []
    inside = Path(path.lstrip("/"))
    if ".." in inside.parts:  # a group outside of this container
        return []
    return [roots[tree] / part / STATISTICS for part in (inside, *inside.parents)]
