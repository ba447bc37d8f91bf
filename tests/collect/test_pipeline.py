"""Which microbatch each pass of a real pipeline over gloo was of, as its four ranks see it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from stepscope.collect.native import build
from stepscope.simulate.schedule import order_of
from stepscope.trace.names import BACKWARD, FORWARD, WEIGHT
from stepscope.wire.records import RecordKind

from .gloo_recording import REPOSITORY
from .listener import Heard, Listener
from .pipeline_schedules import MICROBATCHES, WORLD

Passes = list[tuple[str, int]]
PASSES = (FORWARD, BACKWARD, WEIGHT)


@pytest.fixture(scope="module")
def heard() -> Iterator[dict[int, Heard]]:
    """What each rank sent."""
    if find_spec("torch") is None:
        pytest.skip("needs torch")
    with tempfile.TemporaryDirectory(prefix="sscp-") as name:
        listener = Listener(Path(name) / "s")
        command = [sys.executable, "-m", "tests.collect.pipeline_job", name, str(listener.path)]
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith("STEPSCOPE_") or name == build.CACHE_VARIABLE}  # fmt: skip
        job = subprocess.Popen(command, cwd=REPOSITORY, env=kept)
        peers = [listener.accept() for _ in range(WORLD)]
        readers = [threading.Thread(target=peer.read_to_the_end) for peer in peers]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert job.wait() == 0
        listener.close()
        yield {peer.heard.hellos[0].rank: peer.heard for peer in peers}


def passes(heard: Heard, schedule: str) -> Passes:
    """The passes of one rank in one schedule, in order."""
    phases = heard.records(RecordKind.PHASE)
    (scene,) = [one for one in phases if one.name == f"scene {schedule}"]
    _, start, duration, *_ = scene.fields
    inside = [one for one in phases if start <= one.fields[1] <= start + duration]
    inside.sort(key=lambda one: one.fields[1])
    return [(one.name, one.fields[5]) for one in inside if one.name in PASSES]


def test_gpipe_runs_all_microbatches_forward_and_then_backward(heard: dict[int, Heard]) -> None:
    for rank in range(WORLD):
        expected = [(kind, at) for kind in (FORWARD, BACKWARD) for at in range(MICROBATCHES)]
        assert passes(heard[rank], "ScheduleGPipe") == expected


def test_1f1b_alternates_and_its_numbers_are_those_of_the_schedule(heard: dict[int, Heard]) -> None:
    for rank in range(WORLD):
        order = order_of(rank, WORLD, MICROBATCHES)
        expected = [(f"{cell.direction}-compute", cell.microbatch) for cell in order]
        assert passes(heard[rank], "Schedule1F1B") == expected


def test_a_microbatch_of_interleaved_stages_keeps_its_number(heard: dict[int, Heard]) -> None:
    """A counter would go on to 15; each of the 8 has a pass per stage of the rank."""
    for rank in range(WORLD):
        found = passes(heard[rank], "ScheduleInterleaved1F1B")
        for kind in (FORWARD, BACKWARD):
            numbers = [at for name, at in found if name == kind]
            assert sorted(numbers) == sorted(2 * list(range(MICROBATCHES)))
            assert numbers[: 2 * WORLD] == 2 * list(range(WORLD)), "four at a time"


def test_zero_bubble_has_passes_for_weights_under_a_name_of_their_own(
    heard: dict[int, Heard],
) -> None:
    found = passes(heard[1], "ScheduleInterleavedZeroBubble")
    for kind in PASSES:
        assert sorted(at for name, at in found if name == kind) == sorted(
            2 * list(range(MICROBATCHES))
        )
