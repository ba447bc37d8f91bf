"""Attention, MLP and experts of a model: found, timed in some steps, and in nobody's way."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stepscope.collect.hooks.modules import Parts
from stepscope.collect.hooks.recognise import parts_of
from stepscope.collect.session import Session
from stepscope.wire.records import RecordKind

from .listener import Heard, Listener


class _Work(nn.Module):
    """Something with a parameter, which it adds."""

    def __init__(self, **inner: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        for name, module in inner.items():
            self.add_module(name, module)

    def forward(self, rows: Tensor) -> Tensor:
        for module in self.children():
            rows = module(rows)
        return rows + self.scale


def _kind(name: str) -> type[Any]:
    """A class called as one of a framework's."""
    return type(name, (_Work,), {})


def _layer(kind: str, **inner: str) -> nn.Module:
    layer: nn.Module = _kind(kind)(**{name: _kind(of)() for name, of in inner.items()})
    return layer


def _megatron() -> nn.Module:
    experts = _kind("TEGroupedMLP")()
    moe = _kind("MoELayer")(router=_kind("TopKRouter")(), experts=experts)
    attention = _layer("SelfAttention", linear_qkv="TELinear", core_attention="TEDotProduct")
    dense = _layer("TransformerLayer", self_attention="SelfAttention", mlp="MLP")
    sparse: nn.Module = _kind("TransformerLayer")(self_attention=attention, mlp=moe)
    return nn.ModuleDict({"dense": dense, "sparse": sparse})


def _deepspeed() -> nn.Module:
    experts = _kind("Experts")(deepspeed_experts=nn.ModuleList([_kind("MLP")()]))
    moe = _kind("MoE")(deepspeed_moe=_kind("MOELayer")(gate=_kind("TopKGate")(), experts=experts))
    layer: nn.Module = _kind("Layer")(attention=_kind("ParallelAttention")(), mlp=moe)
    return layer


def _old_mixtral() -> nn.Module:
    """Experts in a list, which nobody calls."""
    experts = nn.ModuleList([_kind("MixtralBlockSparseTop2MLP")() for _ in range(2)])
    moe = _kind("MixtralSparseMoeBlock")(gate=_kind("Gate")(), experts=experts)
    layer: nn.Module = _kind("MixtralDecoderLayer")(self_attn=_kind("A")(), block_sparse_moe=moe)
    return layer


A, M, E = "self_attention", "mlp", "moe_experts"


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        (_megatron(), [A, A, E, M]),
        (_deepspeed(), [A, E]),
        (_old_mixtral(), [E, E, A]),
        (_layer("TransformerBlock", attention="Attention", feed_forward="FeedForward"), [A, M]),
        (_layer("TransformerBlock", attention="Attention", moe="MoE"), [A]),
        (_layer("LlamaDecoderLayer", self_attn="LlamaAttention", mlp="FSDPLlamaMLP"), [A, M]),
        (_layer("Block", attn="GPT2Attention", crossattention="GPT2Attention"), [A]),
        (_layer("Layer", first="CausalSelfAttention", second="SwiGLUFeedForward"), [A, M]),
        (nn.TransformerEncoderLayer(8, 2), [A]),
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU()), []),
    ],
)
def test_parts_of_frameworks_are_recognised(model: nn.Module, parts: list[str]) -> None:
    assert sorted(part for _, part in parts_of(model.modules())) == sorted(parts)


def test_modules_that_hold_each_other_are_no_endless_loop() -> None:
    one, other = _Work(), _Work()
    one.add_module("mlp", other)
    other._modules["attention"] = one
    assert list(parts_of([one, other])) == []


@pytest.fixture
def parts(session: Session) -> Iterator[Parts]:
    parts = Parts(session, every=2)
    yield parts
    parts.leave()


def _model() -> nn.Module:
    return _layer("Block", attention="Attention", mlp="MLP")


def _train(session: Session, model: nn.Module, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(2))
        session.stepped()


def _told(session: Session, listener: Listener) -> Heard:
    session.phase("the end", session.now(), session.now())
    session.close()
    return listener.accept().read_to_the_end()


def _names(heard: Heard) -> list[tuple[str, int]]:
    return [(r.name, r.ordinal) for r in heard.records(RecordKind.PHASE)][:-1]


def test_parts_are_timed_in_the_steps_that_are_sampled(
    session: Session, listener: Listener, parts: Parts
) -> None:
    model = _model()
    session.after_step.append(parts.stepped)
    _train(session, model, 6)
    assert _names(_told(session, listener)) == [(A, 2), (M, 2), (A, 4), (M, 4)]


def test_copies_and_pickles_hold_nothing_of_ours(session: Session, parts: Parts) -> None:
    """A model saved as a whole is loaded where there is no stepscope."""
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, dropout=0.0))
    rows = torch.ones(3, 1, 8)
    expected = model(rows)
    parts.stepped()
    assert model[0].self_attn._forward_hooks, "it has hooks"
    data = pickle.dumps(model)
    assert b"stepscope" not in data
    for twin in (copy.deepcopy(model), pickle.loads(data)):
        assert torch.equal(twin(rows), expected)
    assert not session.started, "a copy is not the model that is trained"


def test_a_compiled_model_is_traced_straight_through(
    session: Session, listener: Listener, parts: Parts
) -> None:
    """`fullgraph` allows no break in the graph; nothing is compiled twice because of us."""
    graphs: list[Any] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = _model()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    expected = model(torch.ones(2))
    session.after_step.append(parts.stepped)
    for _ in range(6):
        assert torch.equal(compiled(torch.ones(2)), expected)
        session.stepped()
    assert len(graphs) == 1
    assert _names(_told(session, listener)) == []


def test_graphs_are_made_of_modules_without_hooks(session: Session, parts: Parts) -> None:
    model = _model()
    parts.stepped()

    def make_graphed_callables(module: Any) -> int:
        return sum(len(one._forward_hooks) for one in module.modules())

    graphs: Any = SimpleNamespace(make_graphed_callables=make_graphed_callables)
    assert make_graphed_callables(model) > 0
    parts.make_way(graphs)
    assert graphs.make_graphed_callables(model) == 0
    parts.stepped()
    assert make_graphed_callables(model) == 0, "and they do not come back"


def test_frozen_models_and_those_in_evaluation_are_left_alone(parts: Parts) -> None:
    frozen, evaluated = _model().requires_grad_(False), _model().eval()
    parts.stepped()
    modules = [*frozen.modules(), *evaluated.modules()]
    assert not [one for one in modules if one._forward_hooks]


def test_evaluation_is_in_no_phase(session: Session, listener: Listener, parts: Parts) -> None:
    model = _model()
    parts.stepped()
    with torch.no_grad():
        model(torch.ones(2))
    assert _names(_told(session, listener)) == []


def test_the_recomputation_of_a_checkpoint_is_backwards(
    session: Session, listener: Listener, parts: Parts
) -> None:
    model = _model()
    parts.stepped()
    model(torch.ones(2))
    session.in_backward = True
    model(torch.ones(2))
    assert _names(_told(session, listener)) == [(A, 0), (M, 0)]


def test_a_pass_that_raised_does_not_lengthen_the_next(
    session: Session, listener: Listener, parts: Parts
) -> None:
    model = _model()
    parts.stepped()
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 3, 4, device="meta"))
    model(torch.ones(2))
    assert _names(_told(session, listener)) == [(A, 0), (M, 0)]


@pytest.fixture
def alone() -> Iterator[None]:
    """A job of one rank, which needs no port."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _fsdp(model: nn.Module) -> nn.Module:
    # two seconds, for every process that runs tests
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    fully_shard(model.mlp, mesh=mesh)
    sharded: nn.Module = fully_shard(model, mesh=mesh)
    return sharded


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("wrap", [DistributedDataParallel, _fsdp])
def test_parts_are_the_same_under_ddp_and_fsdp(
    session: Session, listener: Listener, parts: Parts, wrap: Callable[[nn.Module], nn.Module]
) -> None:
    model = _layer("Block", self_attn="LlamaAttention", mlp="LlamaMLP")
    wrapped = wrap(model)
    parts.stepped()
    wrapped(torch.ones(2)).sum().backward()
    assert _names(_told(session, listener)) == [(A, 0), (M, 0)]
