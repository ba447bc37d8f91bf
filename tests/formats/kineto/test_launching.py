"""What the calls that launched a communication kernel say of it, in torch's versions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.formats.kineto import read
from stepscope.formats.kineto.read import Reading
from stepscope.trace import UNKNOWN_PEER
from stepscope.window import Table

from .traces import COLLECTIVE, Event, event, launched, trace, write

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgs)"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)"
SIZES = {one: COLLECTIVE[one] for one in
         ("Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype")}  # fmt: skip
PIPELINE = {"pg_name": "5", "pg_desc": "mesh_pp", "ranks": [2, 6]}
DATA = {"pg_name": "7", "pg_desc": "mesh_dp", "ranks": [0, 1, 2, 3]}
WORLD = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [*range(8)]}


def called(
    at: float, kernel: str, annotation: str = "", parameters: Event | None = None,
    args: Event | None = None, stream: int = 20,
) -> list[Event]:  # fmt: skip
    """A kernel as torch launches it: operator, its parameters, annotation, call of the runtime."""
    said = [] if parameters is None else [
        event("cpu_op", "record_param_comms", at + 1, 8, **parameters)]  # fmt: skip
    around = [event("user_annotation", annotation, at + 2, 6)] if annotation else []
    return [*said, *around, *launched(kernel, at + 3, at + 100, 20, stream, args)]


def one(folder: Path, events: list[Event], *configured: Any, rank: int = 2) -> Reading:
    info = {"rank": rank, "world_size": 8, "pg_config": list(configured)}
    step = event("user_annotation", "ProfilerStep#1", 0, 1000)
    write(folder / f"rank{rank}.json", trace([step, *events], distributedInfo=info))
    return read(folder)


def comm(reading: Reading) -> Table:
    return reading.window.tables["comm_ops"]


def sent(reading: Reading) -> list[tuple[str | None, int]]:
    table = comm(reading)
    ops = table.strings("op")
    return [(ops[at], peer) for at, peer in enumerate(table.ints("peer").tolist())]


def groups(reading: Reading) -> list[str | None]:
    used = comm(reading).strings("group")
    return [used[at] for at in range(len(comm(reading)))]


def test_what_a_kernel_lacks_its_call_says(tmp_path: Path) -> None:
    whole = {**COLLECTIVE, "Process Group Name": "7", "Process Group Description": "mesh_dp",
             "Process Group Ranks": "[0, 1, 2, 3]", "Group size": 4}  # fmt: skip
    reading = one(tmp_path, called(0, REDUCE, "nccl:all_reduce", whole, {**SIZES, "Group size": 4}))
    assert groups(reading) == ["dp-7"] and comm(reading).ints("bytes").tolist() == [4000]
    assert reading.problems == ()


def test_a_group_is_known_by_its_members(tmp_path: Path) -> None:
    """Older torch records the ranks of a group, but not its name."""
    said = {**SIZES, "Process Group ID": 5, "Process Group Ranks": "[2, 6]"}
    events = called(0, REDUCE, parameters=said)
    assert groups(one(tmp_path, events, WORLD, DATA, PIPELINE)) == ["pp-5"]


def test_members_alone_make_the_same_group_on_all_ranks(tmp_path: Path) -> None:
    said = {**SIZES, "Process Group ID": 5, "Process Group Ranks": "[2, 6]"}
    for rank in (2, 6):
        reading = one(tmp_path, called(0, REDUCE, parameters=said), rank=rank)
    (group,) = [group for group in reading.window.job.groups if group.kind != "world"]
    assert group.ranks == (2, 6) and set(groups(reading)) == {group.id}


def test_the_only_configured_group_of_its_size(tmp_path: Path) -> None:
    events = called(0, REDUCE, args={**SIZES, "Group size": 4})
    assert groups(one(tmp_path, events, WORLD, DATA, PIPELINE)) == ["dp-7"]


def test_a_kernel_of_which_nothing_is_said_has_the_group_of_its_stream(tmp_path: Path) -> None:
    known = {**SIZES, "Process Group Name": "7", "Process Group Ranks": "[0, 1, 2, 3]"}
    events = [*called(0, REDUCE, args={**known, "Group size": 4}), *called(200, REDUCE),
              *called(400, REDUCE, args=COLLECTIVE, stream=24)]  # fmt: skip
    assert groups(one(tmp_path, events, DATA)) == ["dp-7", "dp-7", "world-0"]


def test_annotations_say_who_sends_to_whom(tmp_path: Path) -> None:
    """By their places in the group; kernels of all versions of torch lack it."""
    events = [
        *called(0, SEND_RECV, "nccl:send 0->1", args={"Process Group Name": "5", "Group size": 2}),
        *called(200, SEND_RECV, "nccl:recv 0<-1"),
    ]
    reading = one(tmp_path, events, WORLD, DATA, PIPELINE)
    assert sent(reading) == [("Send", 6), ("Recv", 6)]
    assert groups(reading) == ["pp-5", "pp-5"] and reading.problems == ()


def test_places_that_fit_several_groups_stay_unknown(tmp_path: Path) -> None:
    tensor = {"pg_name": "6", "pg_desc": "mesh_tp", "ranks": [2, 3]}
    reading = one(tmp_path, called(0, SEND_RECV, "nccl:send 0->1"), PIPELINE, tensor)
    assert sent(reading) == [("Send", UNKNOWN_PEER)]


def batched(at: float, calls: Sequence[tuple[str, str, int]]) -> list[Event]:
    said: list[Event] = []
    for number, (what, where, peer) in enumerate(calls):
        begin = at + 10 * number
        args = {**SIZES, "Collective name": what, "Process Group Ranks": "[2, 6]", where: peer}
        said += [event("cpu_op", f"c10d::{what}", begin, 9),
                 event("cpu_op", "record_param_comms", begin + 1, 7, **args)]  # fmt: skip
    return [*said, *called(at + 50, SEND_RECV, "nccl:coalesced")]


def test_a_batch_of_sends_is_what_its_calls_say(tmp_path: Path) -> None:
    events = [
        *batched(0, [("send", "Dst Rank", 6), ("recv", "Src Rank", 6)]),
        *batched(200, [("recv", "Src Rank", 6)]),
    ]
    reading = one(tmp_path, events, PIPELINE)
    assert sent(reading) == [("Send", 6), ("Recv", 6), ("Recv", 6)]
    assert comm(reading).ints("bytes").tolist() == [4000] * 3
    assert reading.problems == () and set(groups(reading)) == {"pp-5"}


@pytest.mark.parametrize(("kernel", "op"), [
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)", "AllToAll"),
    ("void deep_ep::internode::combine<__nv_bfloat16, 8, 7168>(int4*)", "AllToAll"),
    ("c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**)", "Barrier"),
])  # fmt: skip
def test_what_no_process_group_executes_has_none_of_their_groups(
    tmp_path: Path, kernel: str, op: str
) -> None:
    """Nor the call of another kernel, that is around its launch; nor the only configured group."""
    reduced = {**COLLECTIVE, "Process Group Name": "7", "Process Group Description": "mesh_dp",
               "Process Group Ranks": "[0, 1, 2, 3]", "Group size": 4}  # fmt: skip
    events = called(200, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "nccl:all_reduce", reduced)
    moved = called(500, kernel, "nccl:all_reduce", reduced, stream=20)
    reading = one(tmp_path, [*events, *moved], DATA)
    ops = comm(reading).strings("op")
    assert [ops[0], ops[1]] == ["AllReduce", op]
    assert groups(reading) == ["dp-7", "other-stream0"]


def test_ids_of_calls_order_what_devices_executed_beside_each_other(tmp_path: Path) -> None:
    """Only devices were recorded: rank 1 gathers early, and is late with what is reduced."""
    for rank, starts in enumerate(((100, 200, 300), (100, 250, 200))):
        events = []
        for id, (op, at) in enumerate(zip(("AllGather", "ReduceScatter", "AllGather"), starts,
                                          strict=True)):  # fmt: skip
            said = {**SIZES, "Collective name": op, "Process Group Name": "0", "correlation": id}
            stream = 20 + (op == "ReduceScatter")
            events.append(event("kernel", f"ncclDevKernel_{op}_RING_LL", at, 50, stream,
                                stream=stream, device=0, **said))  # fmt: skip
        info = {"rank": rank, "world_size": 2}
        write(tmp_path / f"rank{rank}.json", trace(events, distributedInfo=info))
    table = comm(read(tmp_path))
    ops, seq = table.strings("op"), table.ints("seq").tolist()
    for rank in (0, 1):
        own = np.flatnonzero(table.ints("rank") == rank).tolist()
        assert [ops[at] for at in sorted(own, key=lambda at: seq[at])] == [
            "AllGather", "ReduceScatter", "AllGather"]  # fmt: skip
