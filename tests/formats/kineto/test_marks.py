"""Annotations of the training thread that are no functions: receives, FSDP's, the user's labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.frames import waits
from stepscope.formats.kineto import read
from stepscope.window import Table

from .traces import Event, event, trace, write

STEPS, STEP_MS = 12, 100.0
Step = Callable[[int], list[Event]]


def mark(name: str, start: float, end: float) -> Event:
    return event("user_annotation", name, start * 1e3, (end - start) * 1e3)


def operator(name: str, start: float, end: float) -> Event:
    return event("cpu_op", name, start * 1e3, (end - start) * 1e3)


def received(rank: int) -> list[Event]:
    """A stage of a pipeline that computes for half of the step, and waits for the other stages."""
    first = 5.0 + 15 * rank
    return [
        operator("c10d::recv_", 1, 1.1), mark("gloo:recv", 1.1, first),
        operator("aten::mm", first, first + 15),
        operator("c10d::recv_", first + 15.5, first + 15.6),
        mark("gloo:recv", first + 15.6, first + 50),
        operator("autograd::engine::evaluate_function: MmBackward0", first + 50, first + 65 - rank),
    ]  # fmt: skip


def sharded(rank: int) -> list[Event]:
    """Ranks that gather before they compute."""
    return [
        mark("FSDP::pre_forward", 2, 32), mark("FSDP::all_gather", 3, 31),
        operator("aten::mm", 32, 60 + 0.2 * rank),
        operator("autograd::engine::evaluate_function: MmBackward0", 61, 95),
    ]  # fmt: skip


def labelled(rank: int) -> list[Event]:
    """Ranks that do something under a label of their user's."""
    return [
        mark("read the next batch", 1, 31), operator("aten::mm", 32, 60 + 0.2 * rank),
        operator("autograd::engine::evaluate_function: MmBackward0", 61, 95),
    ]  # fmt: skip


def traces(folder: Path, step: Step) -> Path:
    for rank in range(4):
        one_step = [mark("ProfilerStep#", 0, STEP_MS - 0.001), *step(rank)]
        events = [moved(one, number) for number in range(STEPS) for one in one_step]
        write(folder / f"rank{rank}.json", trace(events, rank, 4))
    return folder


def moved(one: Event, number: int) -> Event:
    """An event of a later step."""
    name = f"{one['name']}{number}" if one["name"].endswith("#") else one["name"]
    return {**one, "name": name, "ts": one["ts"] + number * STEP_MS * 1e3}


@pytest.mark.parametrize("step", [received, sharded, labelled])
def test_healthy_ranks_are_not_accused_of_code_that_may_be_waiting(
    tmp_path: Path, step: Step
) -> None:
    assert diagnose(read(traces(tmp_path, step)).window).verdicts == ()


def kinds(patterns: Table) -> dict[str, str]:
    kind, name = patterns.strings("kind"), patterns.strings("function")
    return {str(name[at]): str(kind[at]) for at in range(len(patterns))}


def test_a_receive_of_the_training_thread_is_communication(tmp_path: Path) -> None:
    found = kinds(read(traces(tmp_path, received)).window.tables["patterns"])
    assert found["gloo:recv"] == "collective"


def test_annotations_of_fsdp_are_no_functions(tmp_path: Path) -> None:
    found = kinds(read(traces(tmp_path, sharded)).window.tables["patterns"])
    assert not any(name.startswith("FSDP") for name in found)


@pytest.mark.parametrize(
    ("frame", "waiting"),
    [
        (
            "<built-in method wait of pybind11_builtins.pybind11_detail_function_record object>",
            True,
        ),
        ("<built-in method synchronize of torch._C._CudaStreamBase object>", True),
        ("<built-in method recv of _socket.socket object>", False),
        ("<built-in function sleep>", False),
        ("wait (torch/distributed/work.py:31)", True),
    ],
)
def test_functions_in_c_wait_by_their_own_name(frame: str, waiting: bool) -> None:
    assert waits(frame) is waiting
