"""What scripts and frameworks do with torch.distributed, one scene each, on four ranks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import stepscope
from tests.collect.gloo_modes import LATE, LATE_SECONDS

SCENES: dict[str, Callable[[], Any]] = {}
TIMEOUT = timedelta(milliseconds=500)


def scene(function: Callable[[], Any]) -> Callable[[], Any]:
    SCENES[function.__name__] = function
    return function


def mine(count: int = 8) -> Tensor:
    """Values of this rank's own."""
    return torch.arange(count, dtype=torch.float32) * 0.37 + dist.get_rank()


def network() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def train(model: nn.Module) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(mine(16).reshape(2, 8)).square().mean()
        loss.backward()
        optimizer.step()
    return [loss]


@scene
def all_reduce() -> Any:
    tensor = mine()
    dist.all_reduce(tensor)
    return tensor


@scene
def all_reduce_of_a_sparse_tensor() -> Any:
    """As of the gradients of an embedding: each rank has values for rows of its own."""
    rows = torch.tensor([[dist.get_rank(), 5]])
    tensor = torch.sparse_coo_tensor(rows, mine(2), (8,)).coalesce()
    dist.all_reduce(tensor)
    return tensor.to_dense()


@scene
def all_reduce_async() -> Any:
    tensor = mine()
    work = dist.all_reduce(tensor, async_op=True)
    return [work.wait(timedelta(seconds=60)), work.is_completed(), tensor]


@scene
def all_reduce_without_gradients() -> Any:
    tensors = [mine(), mine().requires_grad_()]
    with torch.no_grad():
        dist.all_reduce(tensors[1])
    with torch.inference_mode():
        tensors.append(mine())
        dist.all_reduce(tensors[2])
    return tensors


@scene
def all_reduce_coalesced() -> Any:
    tensors = [mine(), mine(4)]
    dist.all_reduce_coalesced(tensors)
    return tensors


@scene
def coalescing_manager() -> Any:
    tensors = [mine(), mine(4)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    return tensors


@scene
def broadcast() -> Any:
    tensor = mine()
    dist.broadcast(tensor, src=1)
    return tensor


@scene
def reduce() -> Any:
    tensor = mine()
    dist.reduce(tensor, dst=2)
    return tensor if dist.get_rank() == 2 else None


@scene
def all_gather() -> Any:
    tensors = [torch.empty(8) for _ in range(dist.get_world_size())]
    dist.all_gather(tensors, mine())
    return tensors


@scene
def all_gather_into_tensor() -> Any:
    tensor = torch.empty(32)
    dist.all_gather_into_tensor(tensor, mine())
    return tensor


@scene
def all_gather_coalesced() -> Any:
    tensors = [[torch.empty(8)] for _ in range(dist.get_world_size())]
    dist.all_gather_coalesced(tensors, [mine()])
    return tensors


@scene
def reduce_scatter() -> Any:
    tensor = torch.empty(2)
    dist.reduce_scatter(tensor, list(mine().split(2)))
    return tensor


@scene
def reduce_scatter_tensor() -> Any:
    tensor = torch.empty(2)
    dist.reduce_scatter_tensor(tensor, mine())
    return tensor


@scene
def all_to_all() -> Any:
    tensors = [torch.empty(2) for _ in range(4)]
    dist.all_to_all(tensors, list(mine().split(2)))
    return tensors


@scene
def all_to_all_single() -> Any:
    tensor = torch.empty(8)
    dist.all_to_all_single(tensor, mine())
    return tensor


@scene
def gather() -> Any:
    root = dist.get_rank() == 0
    tensors = [torch.empty(8) for _ in range(4)] if root else None
    dist.gather(mine(), tensors, dst=0)
    return tensors


@scene
def scatter() -> Any:
    tensor = torch.empty(2)
    dist.scatter(tensor, list(mine().split(2)) if dist.get_rank() == 3 else None, src=3)
    return tensor


@scene
def barrier() -> None:
    dist.barrier()


@scene
def objects() -> Any:
    gathered = [None] * 4
    dist.all_gather_object(gathered, {"rank": dist.get_rank()})
    told = [f"from {dist.get_rank()}"]
    dist.broadcast_object_list(told, src=2)
    return [gathered, told]


@scene
def send_and_receive() -> Any:
    rank, tensor = dist.get_rank(), mine()
    if rank == 0:
        dist.send(tensor, dst=3)
    if rank == 3:
        dist.recv(tensor, src=0)
    return tensor


@scene
def ring_of_isend_and_irecv() -> Any:
    rank, tensor = dist.get_rank(), torch.empty(8)
    send = dist.P2POp(dist.isend, mine(), (rank + 1) % 4)
    receive = dist.P2POp(dist.irecv, tensor, (rank - 1) % 4)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
    return tensor


@scene
def receive_from_anyone() -> Any:
    if dist.get_rank() == 1:
        dist.send(mine(), dst=2)
    if dist.get_rank() != 2:
        return None
    tensor = torch.empty(8)
    return [dist.recv(tensor), tensor]


@scene
def subgroup() -> Any:
    group = dist.new_group([1, 3], group_desc="data_parallel")
    rank, tensor = dist.get_rank(), mine()
    if rank not in (1, 3):
        return None
    dist.all_reduce(tensor, group=group)
    if rank == 1:
        dist.send(tensor, dst=3, group=group)
    else:
        dist.recv(tensor, src=1, group=group)
    return tensor


@scene
def mesh() -> Any:
    world = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("pp", "dp", "tp"))
    tensor = mine()
    dist.all_reduce(tensor, group=world["tp"].get_group())
    stages = world.get_group("pp")
    if dist.get_rank() < 2:
        dist.send(tensor, group=stages, group_dst=1)
    else:
        dist.recv(tensor, group=stages, group_src=0)
    data = world["pp", "dp"]._flatten("dp_and_pp")
    dist.all_reduce(tensor, group=data.get_group())
    return tensor


@scene
def megatron() -> Any:
    """The groups that Megatron-core tells of: tensor parallel in pairs, of 4 ranks."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    state = ModuleType("megatron.core.parallel_state")
    rank, tensor = dist.get_rank(), mine()
    state.get_tensor_model_parallel_group = lambda: pairs[rank // 2]  # type: ignore[attr-defined]
    state.get_data_parallel_group = lambda: across[rank % 2]  # type: ignore[attr-defined]
    sys.modules[state.__name__] = state
    dist.all_reduce(tensor, group=pairs[rank // 2])
    dist.all_reduce(tensor, group=across[rank % 2])
    time.sleep(0.6)  # the kernels in C++ ask later who is in a group
    del sys.modules[state.__name__]
    return tensor


@scene
def functional_collectives() -> Any:
    group = list(range(4))
    return [
        functional.all_reduce(mine(), "sum", group) + 0,
        functional.all_gather_tensor(mine(), 0, group) + 0,
        functional.reduce_scatter_tensor(mine(), "sum", 0, group) + 0,
        functional.all_to_all_single(mine(), None, None, group) + 0,
    ]


@scene
def distributed_data_parallel() -> Any:
    return train(DistributedDataParallel(network()))


class Call(torch.autograd.Function):
    """Calls a function in backward."""

    @staticmethod
    def forward(context: Any, rows: Tensor, call: Callable[[], Any]) -> Tensor:
        context.call = call
        return rows * 1

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        context.call()
        return gradients[0], None


def reduced(first: Callable[[], Any], last: Callable[[], Any]) -> Tensor:
    """A gradient under DDP; in backward `first` is called before, `last` after all buckets."""
    model = DistributedDataParallel(network())
    rows = Call.apply(mine(16).reshape(2, 8).requires_grad_(), last)
    Call.apply(model(rows), first).square().mean().backward()
    gradient = next(model.parameters()).grad
    assert gradient is not None
    return gradient


def nothing() -> None:
    pass


def queue_callback(call: Callable[[], Any]) -> None:
    """At the end of this backward."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def sleep() -> None:
    time.sleep(LATE_SECONDS)


@scene
def a_late_bucket() -> Any:
    """One rank goes on alone when all the others have computed everything."""
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()

    def late() -> None:
        store.wait([f"computed {other}" for other in range(4) if other != LATE])
        sleep()

    def others() -> None:
        queue_callback(lambda: store.set(f"computed {rank}", ""))

    return reduced(late if rank == LATE else others, nothing)


@scene
def a_late_end_of_backward() -> Any:
    return reduced(nothing, sleep if dist.get_rank() == LATE else nothing)


@scene
def a_callback_after_ddps() -> Any:
    """The reducer's own callback waits; this one comes later."""
    call = sleep if dist.get_rank() == LATE else nothing
    return reduced(nothing, lambda: queue_callback(call))


@scene
def buffers() -> Any:
    """DDP broadcasts those of the first rank in every forward."""
    model = DistributedDataParallel(nn.Sequential(network(), nn.BatchNorm1d(8)))
    store, rows = dist.distributed_c10d._get_default_store(), mine(16).reshape(2, 8)
    if dist.get_rank():
        store.set(f"forward {dist.get_rank()}", "")
    else:
        store.wait([f"forward {other}" for other in (1, 2, 3)])
        sleep()
    with stepscope.phase("forward"):
        return model(rows)


@scene
def compressed_gradients() -> Any:
    """Buckets that a hook in Python passes to the backend."""
    model = DistributedDataParallel(network())
    model.register_comm_hook(None, fp16_compress_hook)
    return train(model)


@scene
def first_fully_sharded() -> Any:
    return train(FullyShardedDataParallel(network(), device_id=torch.device("cpu")))


@scene
def second_fully_sharded() -> Any:
    model = network()
    fully_shard(model)
    return train(model)


@scene
def a_wait_that_nobody_sees() -> Any:
    """C++ waits, and gloo's reduce-scatter has no future. Long enough to be taken for open."""
    tensor = functional.reduce_scatter_tensor(mine(), "sum", 0, list(range(4))) + 0
    time.sleep(0.5)
    return tensor


@scene
def a_mistake_of_the_script() -> Any:
    """The backend refuses; nobody communicates."""
    try:
        dist.all_to_all_single(torch.empty(8), mine(), [1, 1, 1, 1], [2, 2, 2, 2])
    finally:
        time.sleep(0.5)  # gloo's next barrier raises the error again if it finds it under way


@scene
def nobody_sends() -> Any:
    """Last, because gloo closes the pair afterwards. Long enough to be told of as open."""
    group = dist.new_group([0, 1])
    try:
        if dist.get_rank() == 0:
            dist.irecv(torch.empty(8), src=1, group=group).wait(TIMEOUT)
    except RuntimeError:
        raise RuntimeError("nobody sent") from None  # gloo's words depend on who closes first
    finally:
        dist.barrier()
