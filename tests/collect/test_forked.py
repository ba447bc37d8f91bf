"""Ranks that a process forks after it has imported torch (`forked_job`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from stepscope.collect import identity
from stepscope.wire.control import decode_leaving

from .forked_job import RANKS, ROUNDS
from .gloo_recording import REPOSITORY
from .listener import Heard, Listener


def test_forked_ranks_are_recorded_and_say_what_ends_them(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "s")
    env = {k: v for k, v in os.environ.items() if not k.startswith("STEPSCOPE_")}
    job = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.collect.forked_job", str(tmp_path)],
        cwd=REPOSITORY, env={**env, identity.SOCKET_VARIABLE: str(listener.path)},
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    peers = [listener.accept() for _ in range(RANKS)]
    heard = sorted((one.read_to_the_end() for one in peers), key=lambda one: one.hellos[0].rank)
    assert job.wait() == 1 and not listener.has_visitor(), "the launcher is no rank"
    listener.close()
    assert [one.hellos[0].rank for one in heard] == list(range(RANKS))
    for one in heard:
        assert len({op.seq for op in one.operators() if op.op == "AllReduce"}) == ROUNDS
    assert error_of(heard[1]) == "ValueError: record 7 is corrupt"


def error_of(heard: Heard) -> str | None:
    (leaving,) = [one for one in map(decode_leaving, heard.controls) if one is not None]
    return leaving.error
