"""Passes that frameworks run in functions of their own, recognised when they are imported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from stepscope.collect.device.marks import MISSED, Mark, Place
from stepscope.collect.hooks import frameworks, imports
from stepscope.collect.hooks.backward import BackwardWatch
from stepscope.collect.hooks.cuda import TorchGpu
from stepscope.collect.hooks.imports import when_imported
from stepscope.collect.session import Session
from stepscope.wire.records import RecordKind

from .fake_gpu import FakeGpu
from .listener import Listener

Write = Callable[[str, str], None]

MEGATRON = '''
import torch

def forward_step(step, batch):
    return step(batch)

def custom_backward(output):
    """Past torch.autograd.backward, as Megatron does it where it frees outputs early."""
    torch.autograd.Variable._execution_engine.run_backward(
        (output,), (torch.ones_like(output),), False, False, (), True, True)

def backward_step(output):
    custom_backward(output)

def one_forward_one_backward(step, warm_up, microbatches):
    in_flight = [forward_step(step, n) for n in range(warm_up)]
    for n in range(warm_up, microbatches):
        in_flight.append(forward_step(step, n))
        backward_step(in_flight.pop(0))
    while in_flight:
        backward_step(in_flight.pop(0))
'''
DEEPSPEED = """
from types import MethodType
import torch

class PipelineEngine:
    def _exec_forward_pass(self, buffer_id):
        self.output = torch.ones(1, requires_grad=True) * 2

    def _exec_backward_pass(self, buffer_id):
        torch.autograd.backward(tensors=(self.output,), grad_tensors=(torch.ones(1),))

    def _exec_optimizer_step(self):
        self.stepped = True

    _INSTRUCTION_MAP = {
        "forward": _exec_forward_pass, "backward": _exec_backward_pass,
        "step": _exec_optimizer_step,
    }

    def run(self, instruction, **kwargs):
        MethodType(self._INSTRUCTION_MAP[instruction], self)(**kwargs)
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module that only this test can import."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def _install(session: Session, monkeypatch: pytest.MonkeyPatch, **places: str) -> None:
    """Our hooks, on stand-ins that lie where these names say."""
    known = [replace(one, module=places[one.module.split(".")[0]]) for one in frameworks.KNOWN
             if one.module.split(".")[0] in places]  # fmt: skip
    monkeypatch.setattr(frameworks, "KNOWN", known)
    watch = BackwardWatch(session, None)
    monkeypatch.setattr(torch.autograd, "backward", watch.around(torch.autograd.backward))
    frameworks.install(session, watch)


def _phases(session: Session, listener: Listener) -> list[tuple[str, int]]:
    session.note(session.phases.phase, 0, "the end", session.now(), session.now())
    session.close()
    records = listener.accept().read_to_the_end().records(RecordKind.PHASE)
    return [(record.name, record.fields[5]) for record in records][:-1]


F, B = "forward-compute", "backward-compute"


def test_megatrons_pipeline_is_seen_pass_by_pass(
    session: Session, listener: Listener, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("megatron_stand_in.schedules", MEGATRON)
    _install(session, monkeypatch, megatron="megatron_stand_in.schedules")
    schedules = importlib.import_module("megatron_stand_in.schedules")
    weight = torch.ones(1, requires_grad=True)
    session.note(session.phases.loaded, 0, "loader", session.now(), session.now())
    schedules.one_forward_one_backward(lambda batch: weight * batch, 2, 4)

    assert weight.grad is not None and weight.grad.item() == 6
    passes = _phases(session, listener)[1:]
    assert passes == [
        (F, 0), (F, 1), (F, 2), (B, 0), (F, 3), (B, 1), (B, 2), (B, 3),
    ]  # fmt: skip


def test_evaluation_is_in_no_phase(
    session: Session, listener: Listener, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("megatron_stand_in.schedules", MEGATRON)
    _install(session, monkeypatch, megatron="megatron_stand_in.schedules")
    schedules = importlib.import_module("megatron_stand_in.schedules")
    with torch.no_grad():
        schedules.forward_step(lambda batch: batch, 1)
    assert _phases(session, listener) == []


def test_deepspeeds_pipeline_looks_its_passes_up_in_a_table(
    session: Session, listener: Listener, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("deepspeed_stand_in.engine", DEEPSPEED)
    _install(session, monkeypatch, deepspeed="deepspeed_stand_in.engine")
    engine = importlib.import_module("deepspeed_stand_in.engine").PipelineEngine()
    engine.run("forward", buffer_id=0)
    engine.run("backward", buffer_id=0)
    engine.run("step")

    assert engine.stepped
    assert _phases(session, listener) == [(F, 0), (B, 0)]


def test_another_version_without_these_functions_is_left_alone(
    session: Session, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("megatron_stand_in.schedules", "def another_step(): return 1\n")
    _install(session, monkeypatch, megatron="megatron_stand_in.schedules")
    assert importlib.import_module("megatron_stand_in.schedules").another_step() == 1


def test_torchs_pipelines_are_seen_pass_by_pass(
    session: Session, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchtitan runs them; a pipeline of one stage needs no second rank."""
    from torch.distributed import pipelining
    from torch.distributed.pipelining.stage import _PipelineStageBase

    (passes,) = (one for one in frameworks.KNOWN if one.module.startswith("torch."))
    for name in (*passes.forward, *passes.backward):  # put back afterwards
        monkeypatch.setattr(_PipelineStageBase, name, getattr(_PipelineStageBase, name))
    _install(session, monkeypatch, torch=passes.module)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        stage = pipelining.PipelineStage(torch.nn.Linear(4, 4), 0, 1, torch.device("cpu"))
        schedule = pipelining.Schedule1F1B(stage, 2, loss_fn=lambda out, _target: out.sum())
        schedule.step(torch.ones(4, 4), target=torch.ones(4, 4))
    finally:
        dist.destroy_process_group()
    assert _phases(session, listener) == [(F, 0), (B, 0), (F, 1), (B, 1)]


def test_torch_has_what_we_call() -> None:
    """Without a GPU nothing of CUDA begins; the names are there in any torch."""
    gpu = TorchGpu(torch)
    assert not gpu.is_in_use()
    assert callable(torch.cuda.CUDAGraph.capture_begin)
    for name in ("record", "query", "elapsed_time"):
        assert callable(getattr(torch.cuda.Event, name))


def test_a_batch_loaded_within_forward_is_no_part_of_it(
    session: Session, listener: Listener
) -> None:
    phases = session.phases
    session.note(phases.loaded, 0, "loader", (10, 0, 0, 0, None), (40, 0, 0, 0, None))
    session.note(phases.forward, 0, (5, 0, 0, 0, None), (90, 0, 0, 0, None))
    session.close()
    records = listener.accept().read_to_the_end().records(RecordKind.PHASE)
    assert [r.fields[1:3] for r in records] == [(10, 30), (40, 50)]


def test_who_is_there_already_is_told_of_at_once() -> None:
    told: list[ModuleType] = []
    when_imported("json", told.append)
    assert told == [sys.modules["json"]]


def test_looking_for_a_module_is_not_importing_it(write: Write) -> None:
    write("sought", "answer = 42\n")
    told: list[int] = []
    when_imported("sought", lambda module: told.append(module.answer))
    assert importlib.util.find_spec("sought") is not None and told == []
    importlib.import_module("sought")
    assert told == [42]
    importlib.reload(sys.modules["sought"])
    assert told == [42]


def test_a_module_that_fails_to_import_fails_as_ever_and_may_be_tried_again(write: Write) -> None:
    write("fragile", "raise OSError('no CUDA')\n")
    told: list[ModuleType] = []
    when_imported("fragile", told.append)
    with pytest.raises(OSError, match="no CUDA"):
        importlib.import_module("fragile")
    write("fragile", "answer = 42  # now\n")
    importlib.invalidate_caches()
    importlib.import_module("fragile")
    assert len(told) == 1


def test_what_does_not_exist_stays_unfound(write: Write) -> None:
    when_imported("nowhere_at_all", print)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("nowhere_at_all")
    assert sum(isinstance(one, imports._Finder) for one in sys.meta_path) == 1


class _Reducer(torch.autograd.Function):
    """As DDP's: asks the engine, when the last gradient is there, to wait at the end."""

    said: list[str]

    @staticmethod
    def forward(_context: Any, rows: torch.Tensor) -> torch.Tensor:
        return rows * 2

    @staticmethod
    def backward(_context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(lambda: _Reducer.said.append("waits"))
        return gradients[0] * 2


@pytest.mark.parametrize("others", [False, True])
def test_gradients_are_marked_before_the_reducer_waits_for_them(
    session: Session, listener: Listener, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    """Operators of others, within the pass, may have been waited for as well: then nobody knows."""
    _Reducer.said = said = []
    gpu = FakeGpu(now_ns=time.monotonic_ns())
    marks = session.time_by_device(gpu)

    def mark(_stream: object = None) -> Place:
        said.append("mark")
        return MISSED

    monkeypatch.setattr(marks, "set", mark)
    first = Mark(deque(), gpu.event(), gpu.current)
    monkeypatch.setattr(session, "mark", lambda _stream=None: (*session.now()[:4], first))
    told: list[Any] = []
    monkeypatch.setattr(session.phases, "backward", lambda *args: told.append(args[3]))
    session.shared.buckets = session.shared.calls = 1
    watch = BackwardWatch(session, None)
    monkeypatch.setattr(torch.autograd, "backward", watch.around(torch.autograd.backward))

    weight = torch.ones(1, requires_grad=True)
    loss = _Reducer.apply(weight).sum()
    if others:
        loss.register_hook(lambda _gradient: setattr(session.shared, "calls", 2))
    loss.backward()
    session.close()
    assert said == ["mark", "waits"] and told == [None if others else MISSED]
    assert weight.grad is not None and weight.grad.item() == 2
