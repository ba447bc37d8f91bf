"""Traces of other PyTorch versions and devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepscope.diagnose.views.breakdown import breakdown
from stepscope.formats.kineto import Reading, read
from stepscope.window import Table

from .traces import AUTOGRAD, COLLECTIVE, MAIN, Event, event, launched, trace, write

DEVICE = 3
"""Pid of a GPU's rows."""


def comm(reading: Reading) -> Table:
    return reading.window.tables["comm_ops"]


def parts(reading: Reading) -> dict[str, float]:
    """Microseconds of the only rank."""
    found = breakdown(reading.window)
    assert found is not None
    return {name: int(found.ranks.ints(f"{name}_ns")[0]) / 1000
            for name in ("compute", "exposed", "hidden", "copy", "idle")}  # fmt: skip


def old_step(number: int, at: int) -> list[Event]:
    """Whole microseconds since 1970, annotations as operators, no arguments of collectives."""
    node = "autograd::engine::evaluate_function: MmBackward0"

    def kernel(name: str, launch: int, start: int, length: int, stream: int) -> list[Event]:
        pair = launched(name, at + launch, at + start, length, stream, cat="Kernel")
        return [{**pair[0], "cat": "Runtime"}, {**pair[1], "pid": DEVICE}]

    return [
        event("Operator", f"ProfilerStep#{number}", at, 990),
        event("Operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 50),
        event("Operator", "aten::mm", at + 100, 50),
        *kernel("volta_sgemm_128x64_nn", 110, 130, 100, 7),
        event("Operator", node, at + 200, 300, AUTOGRAD),
        *kernel("volta_sgemm_128x64_nt", 210, 240, 200, 7),
        event("Operator", "nccl:all_reduce", at + 460, 20, AUTOGRAD),
        *kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 465, 470, 150, 20),
        event("Operator", "Optimizer.step#SGD.step", at + 600, 50),
        event("Operator", "aten::add_", at + 605, 20),
        *kernel("multi_tensor_apply_kernel", 610, 625, 30, 7),
    ]


def test_traces_of_2022(tmp_path: Path) -> None:
    """Neither ranks nor groups nor a base of times are said; the rank is in the name."""
    begin = 1_661_203_463_000_000
    for rank in (0, 1):
        events = [one for n in (1, 2) for one in old_step(n, begin + 1000 * n + rank)]
        content = {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": events}
        write(tmp_path / f"worker{rank}.1661203463123.pt.trace.json", content)
    reading = read(tmp_path)
    tables = reading.window.tables
    assert (reading.window.ranks, reading.problems) == ((0, 1), ())
    assert tables["steps"].ints("step").tolist() == [1, 2, 1, 2]
    assert int(tables["steps"].ints("start_ns")[0]) == (begin + 1000) * 1000
    assert set(tables["phases"].strings("phase").values) == {
        "data-load", "forward-compute", "backward-compute", "optimizer"
    }  # fmt: skip
    assert comm(reading).strings("op").values == ("AllReduce",)
    assert sorted(comm(reading).ints("match").tolist()) == [0, 0, 2, 2]


ROCM = [
    ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI32x32x8x1_SN", "compute"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
     "compute"),
    ("ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)", "exposed"),
    ("ncclDevKernelFunction_AllReduce_RING_SIMPLE_Sum_bf16", "exposed"),
    ("rccl::AllGather_RING", "exposed"),
    ("CopyHostToDevice", "copy"),
    ("FillBuffer", "copy"),
    ("__amd_rocclr_copyBuffer.kd", "copy"),
    ("__amd_rocclr_fillBufferAligned.kd", "copy"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "part"), ROCM)
def test_kernels_of_rocm(tmp_path: Path, name: str, part: str) -> None:
    launch = event("hip_runtime", "hipExtModuleLaunchKernel", 10, 3, correlation=5)
    kernel = event("kernel", name, 20, 40, 0, correlation=5, stream=0, device=0)
    write(tmp_path / "rank0.json", trace([launch, kernel]))
    found = parts(read(tmp_path))
    assert found == {**dict.fromkeys(found, 0), part: 40}


OTHERS = [
    ("oneccl_allreduce_kernel", "xccl:all_reduce"),
    ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)", ""),
    ("one_shot_all_reduce_kernel", ""),
]


@pytest.mark.parametrize(("name", "called"), OTHERS)
def test_reductions_without_nccl(tmp_path: Path, name: str, called: str) -> None:
    """Of Intel's devices, of vLLM, and of torch's symmetric memory."""
    around = [event("user_annotation", called, 5, 20)] if called else []
    launch = event("xpu_runtime", "urEnqueueKernelLaunch", 10, 3, correlation=5)
    kernel = event("kernel", name, 20, 40, 2, correlation=5, stream=2)
    write(tmp_path / "rank0.json", trace([*around, launch, kernel]))
    assert comm(read(tmp_path)).strings("op")[0] == "AllReduce"


def test_collections_of_garbage(tmp_path: Path) -> None:
    """PyTorch 2.9 records them as functions without an id; stacks go on beneath them."""
    main, inner = (event("python_function", f"train.py({line}): {name}", 1000, 9000,
                         **{"Python id": line, "Python parent id": parent})
                   for line, name, parent in ((1, "main", None), (2, "step", 1)))  # fmt: skip
    pause = event("python_function", "Python GC", 3000, 2000, **{"Ev Idx": 7})
    write(tmp_path / "rank0.json", trace([main, inner, pause]))
    tables = read(tmp_path).window.tables
    pauses = tables["pauses"]
    assert (pauses.strings("kind")[0], pauses.ints("duration_ns").tolist()) == ("gc", [2_000_000])
    frames = tables["stacks"].strings("frames").values
    assert [one.count(";") for one in frames] == [1]


def test_rccl_is_recognised_by_the_enclosing_call(tmp_path: Path) -> None:
    said = {**COLLECTIVE, "Collective name": "_allgather_base"}
    events = [
        event("cpu_op", "record_param_comms", 5, 20, **{"External id": 9, **said}),
        event("hip_runtime", "hipExtLaunchKernel", 10, 3, correlation=5),
        event("kernel", "ncclDevKernel_Generic_4(ncclDevKernelArgs)", 20, 40, 2, correlation=5,
              stream=2, **{"External id": 9}),
    ]  # fmt: skip
    write(tmp_path / "rank0.json", trace(events))
    rows = comm(read(tmp_path))
    assert (rows.strings("op")[0], rows.ints("bytes")[0]) == ("AllGather", 4000)


ARGUMENTS: dict[str, Any] = {
    "Collective name": "_allgather_base", "In msg nelems": 512, "Out msg nelems": 4096,
    "Group size": 8, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]",
    "Process Group Name": "3", "Process Group Description": "mesh_fsdp",
    "Process Group Ranks": "[0, 1, 2, ..., 7]", "Global rank start": 0, "Global rank stride": 1,
    "Rank": 0, "Src Rank": 0, "Dst Rank": 0, "Seq": 41, "comms_id": 123456789,
}  # fmt: skip
"""Of an NCCL kernel, PyTorch 2.5 and later."""


def test_arguments_of_nccl_kernels(tmp_path: Path) -> None:
    """Torch's sequence numbers pair collectives although one rank lost the first of them."""
    name = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    for rank in (0, 1):
        kernels = [one for seq in (41, 42, 43) if rank == 0 or seq > 41 for one in
                   launched(name, seq, seq + 1000, 20, 20, {**ARGUMENTS, "Seq": seq})]  # fmt: skip
        write(tmp_path / f"rank{rank}.json", trace(kernels, rank, 8))
    reading = read(tmp_path)
    rows = comm(reading)
    assert [(g.id, g.kind, g.ranks) for g in reading.window.job.groups] == [
        ("world-3", "world", tuple(range(8)))
    ]
    assert rows.ints("bytes").tolist() == [1024] * 5
    match = rows.ints("match").tolist()
    assert match[1:3] == match[3:5] and match[0] not in match[1:]


def test_threads_and_processes_may_be_named(tmp_path: Path) -> None:
    """`"pid": "Spans"` and `"tid": "stream 7"` beside whole numbers and numbers as text."""
    span = {**event("user_annotation", "ProfilerStep#1", 1, 90, "PyTorch Profiler"), "pid": "Spans"}
    kernel = event("kernel", "gemm", 20, 40, "stream 7", stream="7", correlation="5")
    call = event("cuda_runtime", "cudaLaunchKernel", 10, 3, str(MAIN), correlation="5")
    write(tmp_path / "rank0.json", trace([span, call, kernel]))
    tables = read(tmp_path).window.tables
    assert tables["kernels"].ints("stream").tolist() == [7]
    assert tables["kernels"].ints("step").tolist() == [1]
