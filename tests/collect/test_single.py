"""One process under the start-up hook, no torch.distributed (`single_job`)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stepscope.wire.records import EventKind, RecordKind

from .gloo_recording import REPOSITORY
from .listener import Heard, Listener, Record
from .test_inject import INJECT

F, B, L, O = "forward-compute", "backward-compute", "data-load", "optimizer"  # noqa: E741


@dataclass(frozen=True)
class Ran:
    heard: Heard
    stdout: str
    plain_stdout: str

    def scene(self, name: str) -> list[Record]:
        """Phases and events inside a scene, in the order in which they ended."""
        records = [r for r in self.heard.records() if r.kind in _KINDS]
        ends = [r.name for r in records if r.name.startswith("scene ")]
        at = [i for i, r in enumerate(records) if r.name.startswith("scene ")]
        which = ends.index(f"scene {name}")
        return records[at[which - 1] + 1 if which else 0 : at[which]]

    def phases(self, name: str) -> list[str]:
        return [r.name for r in self.scene(name) if r.kind == RecordKind.PHASE]

    def events(self, name: str) -> list[tuple[EventKind, str]]:
        return [
            (EventKind(r.flags), r.name) for r in self.scene(name) if r.kind == RecordKind.EVENT
        ]


_KINDS = (RecordKind.PHASE, RecordKind.EVENT)


def _start(**more: str) -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("STEPSCOPE_")}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.collect.single_job"],
        cwd=REPOSITORY, env={**env, **more}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture(scope="module")
def ran() -> Iterator[Ran]:
    with tempfile.TemporaryDirectory(prefix="sscp-") as folder:
        listener = Listener(Path(folder) / "s")
        plain = _start()
        recorded = _start(
            STEPSCOPE_SOCKET=str(listener.path), STEPSCOPE_JOB="one", STEPSCOPE_RAISE="1",
            PYTHONPATH=str(INJECT),
        )  # fmt: skip
        heard = listener.accept().read_to_the_end()
        stdout, stderr = recorded.communicate()
        assert not listener.has_visitor(), "the loader's workers kept quiet"
        listener.close()
        assert (recorded.returncode, stderr) == (0, "")
        yield Ran(heard, stdout, plain.communicate()[0])


def test_the_script_sees_no_difference(ran: Ran) -> None:
    """Nor does it get the compiler's modules earlier than it asks for them."""
    assert ran.stdout == ran.plain_stdout != ""


def test_a_job_of_one(ran: Ran) -> None:
    (hello,) = ran.heard.hellos
    assert (hello.job, hello.rank, hello.world_size) == ("one", 0, 1)
    assert ran.heard.operators() == []


@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("loop", [L, F, B, O] * 3),
        ("accumulation", [L, F, B, L, F, B, O] * 2),
        ("exhausted_loader", [L, L]),
        ("workers", [L] * 4),
        ("background_loader", []),
        ("dataset_without_length", [L, L]),
        ("reentrant_checkpoint", [F, B]),
        ("failing_backward", [F, B, F, B]),
        ("two_optimizers", [L, F, B, O, O] * 2),
        ("nested_optimizers", [F, B, O]),
        ("failing_step", [O, O]),
    ],
)
def test_phases(ran: Ran, name: str, phases: list[str]) -> None:
    assert ran.phases(name) == phases


def test_what_a_closure_does_is_not_the_optimizers_time(ran: Ran) -> None:
    """The step event holds all of it, its phase what came after the last backward inside."""
    records = ran.scene("lbfgs")
    events = [r for r in records if r.kind == RecordKind.EVENT]
    phases = [r for r in records if r.kind == RecordKind.PHASE]
    (first, second) = [r for r in phases if r.name == O]
    for event, step in zip(events, (first, second), strict=True):
        _, begin, end, *_ = event.fields
        backwards = [r for r in phases if r.name == B and begin <= r.fields[1] <= end]
        assert backwards and step.fields[1] == max(r.fields[1] + r.fields[2] for r in backwards)
    assert [r.ordinal for r in (first, second)] == [first.ordinal, first.ordinal + 1]


def test_events_tell_loaders_and_optimizers_apart(ran: Ran) -> None:
    load, step = EventKind.LOAD, EventKind.OPTIMIZER
    assert ran.events("loop") == [
        (load, "loader TensorDataset[6] batch 2"), (step, "optimizer SGD[2]"),
    ] * 3  # fmt: skip
    assert ran.events("two_optimizers")[1:3] == [
        (step, "optimizer SGD[2]"), (step, "optimizer Adam[2]"),
    ]  # fmt: skip
    assert ran.events("dataset_without_length") == [(load, "loader Endless[?] batch None")] * 2
    assert ran.events("nested_optimizers") == [(step, "optimizer Outer[2]")]


def test_microbatches_and_steps_are_counted(ran: Ran) -> None:
    backwards = [r for r in ran.scene("accumulation") if r.name == B]
    assert [r.fields[5] for r in backwards] == [0, 1, 0, 1]
    first = backwards[0].ordinal
    assert [r.ordinal - first for r in backwards] == [0, 0, 1, 1]


def test_a_step_that_failed_does_not_lengthen_the_next(ran: Ran) -> None:
    first, second = (r for r in ran.scene("failing_step") if r.kind == RecordKind.PHASE)
    assert first.fields[1] + first.fields[2] <= second.fields[1]
