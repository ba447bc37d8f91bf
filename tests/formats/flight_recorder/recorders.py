"""Flight recorders of made-up ranks: call operators on them, then write what they would dump.

ranks = a_job(4)
everyone(ranks, "all_reduce", times=3)
everyone(ranks[:2] + ranks[3:], "all_reduce", state="scheduled")   # rank 2 does not come
window = window_of(tmp_path, ranks)
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.formats.flight_recorder import read
from stepscope.window import Window

START = 1_766_000_000_000_000_000
MS = 1_000_000
HOUR = 3600 * 1000 * MS
WORLD = "0"
Groups = dict[str, tuple[str, tuple[int, ...]]]


@dataclass
class Recorder:
    """The ring of one rank."""

    rank: int
    groups: Groups
    backend: str = "nccl"
    tells_members: bool = True
    entries: list[dict[str, Any]] = field(default_factory=list)
    seqs: dict[tuple[str, bool], int] = field(default_factory=dict)
    called: dict[str, int] = field(default_factory=dict)
    """Operators by group, with those that gloo does not record."""
    first_record: int = 0

    def call(
        self,
        name: str,
        group: str = WORLD,
        state: str = "completed",
        size: Sequence[int] = (4,),
        out: Sequence[int] | None = None,
        dtype: str = "Float",
        p2p: bool = False,
        same_seq: bool = False,
        **more: Any,
    ) -> None:
        """One operator. Gloo never says more than `scheduled`, but retires what has ended."""
        number = self.seqs.get((group, p2p), 0) + (not same_seq)
        self.seqs[group, p2p] = number
        record = len(self.entries)
        self.called[group] = self.called.get(group, 0) + 1
        gloo = self.backend == "gloo"
        time = START + record * MS + self.rank
        done = state == "completed"
        self.entries.append({
            "record_id": record, "pg_id": 0, "process_group": (group, self.groups[group][0]),
            "collective_seq_id": self.seqs.get((group, False), 0),
            "p2p_seq_id": self.seqs.get((group, True), 0), "op_id": self.called[group],
            "profiling_name": f"{self.backend}:{name}", "time_created_ns": time,
            "input_sizes": [list(size)], "input_dtypes": [dtype],
            "output_sizes": [list(size if out is None else out)], "output_dtypes": [dtype],
            "state": "scheduled" if gloo else state,
            "time_discovered_started_ns": time if state != "scheduled" and not gloo else None,
            "time_discovered_completed_ns": time if done and not gloo else None,
            "retired": done, "timeout_ms": 600_000, "is_p2p": p2p,
            "frames": [
                {"name": name, "filename": "/opt/torch/distributed/distributed_c10d.py", "line": 7},
                {"name": f"before_{name}", "filename": "/job/train.py", "line": record + 1},
                {"name": "<module>", "filename": "/job/train.py", "line": 99},
            ], **more,
        })  # fmt: skip

    def send(self, to: int, group: str = WORLD, state: str = "completed", **more: Any) -> None:
        here, there = self._places(group, to)
        self.call(f"send {here}->{there}", group, state, p2p=True, **more)

    def recv(self, source: int, group: str = WORLD, state: str = "completed", **more: Any) -> None:
        here, there = self._places(group, source)
        self.call(f"recv {here}<-{there}", group, state, p2p=True, **more)

    def _places(self, group: str, peer: int) -> tuple[int, int]:
        """Recorders write ranks within the group."""
        ranks = self.groups[group][1]
        return ranks.index(self.rank), ranks.index(peer)

    def dump(self) -> dict[str, Any]:
        mine = {name: one for name, one in self.groups.items() if self.rank in one[1]}
        config = {name: {"name": name, "desc": desc, "ranks": str(list(ranks))}
                  for name, (desc, ranks) in mine.items()}  # fmt: skip
        if not self.tells_members:
            config = {"": {"name": "", "desc": "", "ranks": "[]"}}
        return {
            "version": "2.10", "pg_config": config, "pg_status": {}, "comm_lib_version": "2.27.3",
            "entries": self.entries[self.first_record :],
        }  # fmt: skip


def a_job(ranks: int, backend: str = "nccl", groups: Groups | None = None) -> list[Recorder]:
    """Recorders of all ranks, the world group and the given ones."""
    world: Groups = {WORLD: ("default_pg", tuple(range(ranks)))}
    known = {**world, **(groups or {})}
    return [Recorder(rank, known, backend, backend != "gloo") for rank in range(ranks)]


def everyone(
    ranks: Iterable[Recorder], name: str, group: str = WORLD, times: int = 1, **more: Any
) -> None:
    """All given ranks that are in the group call an operator."""
    for one in ranks:
        for _ in range(times):
            if one.rank in one.groups[group][1]:
                one.call(name, group, **more)


def write(
    folder: Path, ranks: Iterable[Recorder], form: str = "pickle", age_ns: int = HOUR,
    name: str = "nccl_trace_rank_{rank}",
) -> Path:  # fmt: skip
    """Dumps files as torch does; they were written so long after each rank's last call."""
    folder.mkdir(parents=True, exist_ok=True)
    for one in ranks:
        path = folder / name.format(rank=one.rank)
        data = one.dump()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(data, 2) if form == "pickle" else json.dumps(data).encode())
        last = one.entries[-1]["time_created_ns"] if one.entries else START
        os.utime(path, ns=(last + age_ns, last + age_ns))
    return folder


def window_of(folder: Path, ranks: Iterable[Recorder], age_ns: int = HOUR) -> Window:
    return read(write(folder, ranks, age_ns=age_ns)).window
