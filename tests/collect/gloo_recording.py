"""Runs `gloo_job` once and keeps what its ranks computed, said, and sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.collect.native import build
from stepscope.wire.records import RecordKind

from .gloo_modes import MODES, WORLD
from .listener import Heard, Listener, Operator, Peer

REPOSITORY = Path(__file__).parents[2]


@dataclass
class Recording:
    """By mode and rank; `mode` is the one whose operators are looked at."""

    mode: str = "python"
    results: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    stderr: dict[str, list[str]] = field(default_factory=dict)
    heard: dict[tuple[str, int], Heard] = field(default_factory=dict)

    def of(self, rank: int) -> Heard:
        return self.heard[self.mode, rank]

    def scene(self, name: str, rank: int) -> list[Operator]:
        """Operators that one rank called in one scene, each once, as it was told of last."""
        latest = {(op.group, op.op, op.peer, op.seq): op for op in self.told(name, rank)}
        return list(latest.values())

    def told(self, name: str, rank: int) -> list[Operator]:
        """The same, but those that took long twice: while they were open, and at their end."""
        heard = self.of(rank)
        (phase,) = [r for r in heard.records(RecordKind.PHASE) if r.name == f"scene {name}"]
        _, start, duration, *_ = phase.fields
        return [op for op in heard.operators() if start <= op.enqueue_ns <= start + duration]


def record(folder: Path) -> Recording:
    """Runs the job in all modes; the library in C++ is compiled first, if it is not there yet."""
    torch = build.torch_folder()
    assert torch is not None
    build.build(torch)
    listener = Listener(folder / "s")
    peers: list[Peer] = []
    job = subprocess.Popen(
        [sys.executable, "-m", "tests.collect.gloo_job", str(folder), str(listener.path)],
        cwd=REPOSITORY,
        env={
            name: value
            for name, value in os.environ.items()
            if not name.startswith("STEPSCOPE_") or name == build.CACHE_VARIABLE
        },
    )
    readers = []
    for _ in range((len(MODES) - 1) * WORLD):
        peers.append(listener.accept())
        readers.append(threading.Thread(target=peers[-1].read_to_the_end))
        readers[-1].start()
    for reader in readers:
        reader.join()
    assert job.wait() == 0
    listener.close()
    recording = Recording()
    for mode in MODES:
        files = [folder / f"{mode}-{rank}" for rank in range(WORLD)]
        recording.results[mode] = [json.loads(f.with_suffix(".json").read_text()) for f in files]
        recording.stderr[mode] = [f.with_suffix(".err").read_text() for f in files]
    for peer in peers:
        hello = peer.heard.hellos[0]
        recording.heard[hello.job, hello.rank] = peer.heard
    return recording
