"""Four real ranks profile the same steps, and their training does not notice."""

from __future__ import annotations

import gzip
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepscope.cli.launch import environment
from stepscope.processor.instructions import RankProfiled
from stepscope.processor.state.host_state import HostState
from stepscope.processor.state.profiling import requests_for
from stepscope.wire.frames import MAX_PACKET_BYTES, PacketKind, pack

from .conftest import HERE, TIMEOUT_SECONDS, kill_tree

pytestmark = pytest.mark.real

RANKS, STEPS = 4, 150


class Processor:
    """Knows and decides as the real one does, in the hands of a test."""

    def __init__(self, path: Path) -> None:
        self.state = HostState()
        self.replies: list[RankProfiled] = []
        self._lines: dict[int, socket.socket] = {}
        self._came = False
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(path))
        self._listening.listen(16)

    def serve_until(self, enough: Callable[[], bool]) -> None:
        """Handles packets until there is enough, or everybody has left."""
        while not enough() and not (self._came and not self._lines):
            readable = select.select([self._listening, *self._lines.values()], [], [], 60)[0]
            assert readable, "nothing came for a minute"
            for line in readable:
                if line is self._listening:
                    self._accept()
                else:
                    self._read(line)

    def _accept(self) -> None:
        line, _ = self._listening.accept()
        self._lines[line.fileno()] = line
        self._came = True

    def _read(self, line: socket.socket) -> None:
        at, data = line.fileno(), line.recv(MAX_PACKET_BYTES)
        if not data:
            self._lines.pop(at).close()
            self.state.disconnected(at)
            return
        said = self.state.packet(at, data, 0)
        self.replies += [one for one in said if isinstance(one, RankProfiled)]

    def ask(self, first: int, last: int, folder: Path, ranks: tuple[int, ...] = ()) -> None:
        for at, payload in requests_for(
            self.state, "windowed", first, last, ranks, 60.0, "w", folder
        ):
            self._lines[at].send(pack(PacketKind.CONTROL, payload, os.getpid(), 0))

    def step(self) -> int:
        """How far the slowest rank is known to be; -1 before all are there."""
        trackers = [p.tracker for p in self.state.producers.values()]
        return min((t._next_step for t in trackers), default=-1) if len(trackers) == RANKS else -1

    def close(self) -> None:
        self._listening.close()


class Job:
    """The job, started; `finish` gives its losses by rank."""

    def __init__(self, path: Path | None, *arguments: str) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        if path is not None:
            env = environment(env, "windowed", str(path.parent), path)
        launch = [sys.executable, str(HERE / "launch.py"), "--fork", str(RANKS)]
        self.process = subprocess.Popen(
            [*launch, str(HERE / "windowed.py"), str(STEPS), *arguments], env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def finish(self) -> list[str]:
        stdout, self.stderr = self.process.communicate(timeout=TIMEOUT_SECONDS)
        assert self.process.returncode == 0, self.stderr
        return sorted(stdout.splitlines())


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    started: list[Job] = []

    def start(path: Path | None, *arguments: str) -> Job:
        started.append(Job(path, *arguments))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            kill_tree(one.process.pid)


@pytest.fixture
def processor(tmp_path: Path) -> Iterator[Processor]:
    processor = Processor(tmp_path / "p.sock")
    yield processor
    processor.close()


def names_in(path: Path) -> set[str]:
    trace = json.loads(gzip.decompress(path.read_bytes()))
    return {event["name"] for event in trace["traceEvents"] if event.get("ph") == "X"}


def test_all_ranks_profile_the_same_steps_and_train_as_ever(
    job: Callable[..., Job], processor: Processor, tmp_path: Path
) -> None:
    plain = job(None).finish()
    profiled = job(tmp_path / "p.sock")
    processor.serve_until(lambda: processor.step() > 10)
    first = processor.step() + 15
    processor.ask(first, first + 4, tmp_path)
    processor.serve_until(lambda: len(processor.replies) == RANKS)

    assert [(r.first_step, r.last_step, r.reply.trouble) for r in processor.replies] == [
        (first, first + 4, None)
    ] * RANKS
    assert {reply.rank for reply in processor.replies} == set(range(RANKS))
    for reply in processor.replies:
        names = names_in(Path(reply.reply.path))
        assert any(name.endswith("): prepare") and "windowed.py(" in name for name in names)
        assert "aten::addmm" in names
    processor.ask(2, 6, tmp_path)  # the past
    processor.serve_until(lambda: len(processor.replies) == 2 * RANKS)
    assert all("begun already" in str(r.reply.trouble) for r in processor.replies[RANKS:])
    processor.serve_until(lambda: False)
    assert profiled.finish() == plain, "losses are the same to the last bit"
    assert "internal fault" not in profiled.stderr and "USDT" not in profiled.stderr


def test_the_scripts_own_profiler_wins(
    job: Callable[..., Job], processor: Processor, tmp_path: Path
) -> None:
    training = job(tmp_path / "p.sock", "--profile")
    processor.serve_until(lambda: processor.step() > 10)
    processor.ask(STEPS // 2 - 2, STEPS, tmp_path, (1, 2))
    processor.serve_until(lambda: False)

    assert {reply.rank for reply in processor.replies} == {1, 2}
    assert all("profiler of its own" in str(r.reply.trouble) for r in processor.replies)
    assert all("True" in line for line in training.finish()), "theirs had its operators"


def test_a_signal_is_enough(job: Callable[..., Job], processor: Processor, tmp_path: Path) -> None:
    training = job(tmp_path / "p.sock")
    processor.serve_until(lambda: processor.step() > 10)
    ranks = {p.hello.rank: p.hello.pid for p in processor.state.producers.values()}
    os.kill(ranks[2], signal.SIGUSR2)
    rest = threading.Thread(target=processor.serve_until, args=(lambda: False,), daemon=True)
    rest.start()
    training.finish()

    [line] = [line for line in training.stderr.splitlines() if "profiled optimizer" in line]
    path = Path(line.rpartition(": ")[2])
    assert any(name.endswith("): prepare") for name in names_in(path))
    path.unlink()
    path.parent.rmdir()
