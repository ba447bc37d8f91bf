"""From folders to windows: ranks, steps, phases, kernels, collectives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.errors import SourceError
from stepscope.formats.kineto import read, recognise
from stepscope.formats.kineto.files import ranks_by_name
from stepscope.trace import TABLES
from stepscope.window import NULL, Table, Window

from .traces import (
    BASE_NS,
    COLLECTIVE,
    MAIN,
    STEP_US,
    Event,
    event,
    gpu_events,
    gpu_step,
    launched,
    trace,
    write,
)


def window(folder: Path) -> Window:
    return read(folder).window


def one(folder: Path, content: Any) -> Window:
    write(folder / "trace_rank0.json", content)
    return window(folder)


def phase(table: Table, name: str) -> Table:
    return table.take(table.strings("phase").equals(name))


def us(table: Table, name: str) -> list[float]:
    """Times of a column in microseconds after the base."""
    return [(int(value) - BASE_NS * ("dur" not in name)) / 1000 for value in table.ints(name)]


def test_a_step_in_all_its_parts(tmp_path: Path) -> None:
    seen = one(tmp_path, trace(gpu_events()))
    steps = seen.tables["steps"]
    assert steps.ints("step").tolist() == [5, 6]
    assert us(steps, "start_ns") == [1000, 2000]
    phases = seen.tables["phases"]
    assert us(phase(phases, "data-load"), "duration_ns") == [50, 50]
    assert us(phase(phases, "forward-compute"), "start_ns") == [1130, 2130]
    assert us(phase(phases, "forward-compute"), "duration_ns") == [100, 100]
    assert us(phase(phases, "backward-compute"), "duration_ns") == [200, 200]
    assert us(phase(phases, "optimizer"), "duration_ns") == [30, 30]
    assert phase(phases, "forward-compute").ints("microbatch").tolist() == [0, 0]
    kernels = seen.tables["kernels"]
    assert len(kernels) == 10
    assert us(kernels, "enqueue_ns")[:3] == [1060, 1115, 1210]
    comm = seen.tables["comm_ops"]
    assert comm.strings("op")[0] == "AllReduce" and comm.strings("group")[0] == "world-0"
    assert comm.ints("bytes").tolist() == [4000, 4000] and comm.ints("seq").tolist() == [0, 1]
    assert us(comm, "enqueue_ns") == [1320, 2320] and us(comm, "end_ns") == [1550, 2550]
    assert "aten::addmm" not in seen.tables["host_ops"].strings("name").values


def test_what_is_copied_ahead_on_a_stream_of_its_own_begins_no_phase(tmp_path: Path) -> None:
    copy = launched("Memcpy HtoD (Pinned -> Device)", 1112, 1116, 5, 21, cat="gpu_memcpy")
    phases = one(tmp_path, trace([*gpu_events(), *copy])).tables["phases"]
    assert us(phase(phases, "forward-compute"), "start_ns") == [1130, 2130]


def test_steps_without_marks_end_with_the_optimizer(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", trace(gpu_events(3, marked=False)))
    reading = read(tmp_path)
    steps = reading.window.tables["steps"]
    assert steps.ints("step").tolist() == [0, 1, 2]
    assert us(steps, "duration_ns")[1:] == [STEP_US, STEP_US]
    assert reading.problems == (
        "the traces do not mark their steps; found by Optimizer.step",
    )  # fmt: skip


def test_the_first_step_without_marks_loads_data_too(tmp_path: Path) -> None:
    phases = one(tmp_path, trace(gpu_events(marked=False))).tables["phases"]
    assert us(phase(phases, "data-load"), "duration_ns") == [50, 50]


def test_steps_without_any_annotation_are_where_operators_repeat(tmp_path: Path) -> None:
    names = ["embed", *["attend", "norm", "mlp", "norm"] * 12, "loss", "grad", "update"]
    ops = [event("cpu_op", name, 1000.0 + at * 10, 8) for at, name in enumerate(names * 5)]
    del ops[77]  # an event that the profiler lost
    steps = one(tmp_path, trace(ops)).tables["steps"]
    assert us(steps, "duration_ns") == [len(names) * 10.0] * 4
    assert us(steps, "start_ns")[0] == 1000


def test_what_follows_the_last_whole_step_is_no_part_of_it(tmp_path: Path) -> None:
    backward = "autograd::engine::evaluate_function: Loss"
    names = ["embed", *["attend", "norm", "mlp", "norm"] * 3, "loss", backward, "reduce", "update"]
    ops = [event("cpu_op", name, 1000.0 + at * 10, 8) for at, name in enumerate(names * 5)]
    seen = one(tmp_path, trace(ops))
    passes = phase(seen.tables["phases"], "forward-compute")
    assert seen.tables["steps"].ints("step").tolist() == [0, 1, 2, 3]
    assert passes.ints("step").tolist() == [0, 1, 2, 3] and len(set(us(passes, "duration_ns"))) == 1


def test_gpu_annotations_of_steps_do_not_double_them(tmp_path: Path) -> None:
    double = event("gpu_user_annotation", "ProfilerStep#5", 1130, 900, 7)
    assert len(one(tmp_path, trace([*gpu_events(), double])).tables["steps"]) == 2


def test_old_categories_and_rocm_names(tmp_path: Path) -> None:
    events = [
        event("Operator", "ProfilerStep#1", 0, 500),
        event("Operator", "aten::add", 10, 20),
        event("Runtime", "hipLaunchKernel", 12, 2, correlation="9"),
        event("Kernel", "ncclDevKernel_Generic_1(ncclDevKernelArgs)", 30, 5, "stream 3",
              correlation="9", stream="3"),
        event("Operator", "nccl:all_gather", 11, 10),
    ]  # fmt: skip
    seen = one(tmp_path, trace(events))
    assert seen.tables["kernels"].ints("stream").tolist() == [3]
    assert us(seen.tables["kernels"], "enqueue_ns") == [12]
    assert seen.tables["comm_ops"].strings("op")[0] == "AllGather"


def test_arguments_of_the_operator_that_launched_a_kernel(tmp_path: Path) -> None:
    said = {**COLLECTIVE, "Collective name": "_reduce_scatter_base", "dtype": "BFloat16"}
    events = [
        event("cpu_op", "record_param_comms", 10, 20, **{"External id": 3, **said}),
        *launched("ncclDevKernel_ReduceScatter_Sum_bf16", 15, 40, 9, 20, {"External id": 3}),
    ]
    comm = one(tmp_path, trace(events)).tables["comm_ops"]
    assert comm.strings("op")[0] == "ReduceScatter" and comm.ints("bytes").tolist() == [2000]


def test_a_send_names_its_peer(tmp_path: Path) -> None:
    args = {**COLLECTIVE, "Collective name": "send", "Dst Rank": "1"}
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgs)"
    comm = one(tmp_path, trace(launched(name, 10, 20, 5, 20, args))).tables["comm_ops"]
    assert (comm.strings("op")[0], comm.ints("peer")[0]) == ("Send", 1)


def test_times_in_nanoseconds(tmp_path: Path) -> None:
    start = 1_712_195_495_502_094_565
    events = [event("cpu_op", "aten::add", start, 1500), event("cpu_op", "b", start + 9000, 1)]
    content = trace(events)
    del content["baseTimeNanoseconds"]
    ops = one(tmp_path, content).tables["host_ops"]
    assert ops.ints("start_ns").tolist() == [start, start + 9000]
    assert ops.ints("duration_ns")[0] == 1500


def pair(folder: Path, second: list[Event] | None = None, **more: Any) -> Window:
    write(folder / "a.json.gz", trace(gpu_events(), rank=0, **more))
    write(folder / "b.json", trace(second or gpu_events(), rank=1, **more))
    return window(folder)


def test_two_ranks_are_one_job(tmp_path: Path) -> None:
    config = {"rank": 0, "world_size": 2, "pg_config": [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]},
        {"pg_name": "7", "pg_desc": "mesh_tp", "ranks": [0]}]}  # fmt: skip
    write(tmp_path / "a.json", trace(gpu_events(), distributedInfo=config, host_name="h0"))
    write(tmp_path / "b.json", trace(gpu_events(), rank=1, host_name="h1"))
    seen = window(tmp_path)
    assert [(g.id, g.ranks) for g in seen.job.groups] == [("tp-7", (0,)), ("world-0", (0, 1))]
    assert [(h.name, h.ranks) for h in seen.job.hosts] == [("h0", (0,)), ("h1", (1,))]
    comm = seen.tables["comm_ops"]
    assert sorted(comm.ints("match").tolist()) == sorted([*set(comm.ints("match").tolist())] * 2)
    assert diagnose(seen).ranks == 2


def test_a_lost_collective_leaves_later_steps_matched(tmp_path: Path) -> None:
    lost = [e for e in gpu_step(5, 1000.0) if "nccl" not in e["name"]] + gpu_step(6, 2000.0)
    comm = pair(tmp_path, lost).tables["comm_ops"]
    second = comm.take(comm.ints("step") == 6)
    assert len(second) == 2 and len(set(second.ints("match").tolist())) == 1


def test_the_same_read_in_several_processes(tmp_path: Path) -> None:
    alone = pair(tmp_path)
    told: list[tuple[int, int]] = []
    together = read(tmp_path, workers=2, progress=lambda *done: told.append(done)).window
    assert told[-1][0] == told[-1][1] == sum(p.stat().st_size for p in tmp_path.iterdir())
    for name, table in alone.tables.items():
        time = TABLES[name].time if name in TABLES else "start_ns"
        time = time if table.has(time) else "start_ns"
        assert np.array_equal(together.tables[name].ints(time), table.ints(time))


def test_windows_of_one_rank_are_joined_and_copies_refused(tmp_path: Path) -> None:
    write(tmp_path / "rank0.1.json", trace(gpu_step(1, 1000.0)))
    write(tmp_path / "rank0.2.json", trace(gpu_step(2, 9000.0)))
    seen = window(tmp_path)
    assert seen.tables["steps"].ints("step").tolist() == [1, 2]
    assert seen.tables["comm_ops"].ints("seq").tolist() == [0, 1]
    write(tmp_path / "copy.json", trace(gpu_step(2, 9000.0)))
    with pytest.raises(SourceError, match=r"copy.json and rank0.2.json are both of rank 0"):
        window(tmp_path)


@pytest.mark.parametrize(("names", "ranks"), [
    (["gpu-node-17_rank3.pt.trace", "gpu-node-18_rank12.pt.trace"], [3, 12]),
    (["node4-0.171", "node4-1.172"], [0, 1]),
    (["rank-0.Apr_03_18_51_38.1102.pt.trace"], [0]),
    (["3"], [None]), (["0"], [0]), (["host7_4711.1712", "host7_4712.1713"], [None, None]),
])  # fmt: skip
def test_ranks_by_name(names: list[str], ranks: list[int | None]) -> None:
    assert ranks_by_name(names) == ranks


def test_unknown_ranks_are_assigned_in_order_and_reported(tmp_path: Path) -> None:
    for name in ("host7_4711", "host7_4712"):
        write(tmp_path / f"{name}.json", trace(gpu_events(), rank=None))
    reading = read(tmp_path)
    assert reading.window.ranks == (0, 1)
    assert "host7_4712.json: it has no rank; taken as rank 1" in reading.problems[1]


def test_a_truncated_file_that_lost_all_of_its_device_has_no_steps(tmp_path: Path) -> None:
    """Else the host, which waits for its device, would seem to do the work."""
    host = [one for one in gpu_events() if one["cat"] not in ("kernel", "gpu_memcpy")]
    write(tmp_path / "rank0.json", trace(gpu_events()))
    text = json.dumps(trace(host, rank=1))
    write(tmp_path / "rank1.json", text[: text.index("], ")].encode())
    assert set(window(tmp_path).tables["steps"].ints("rank").tolist()) == {0}


def test_stacks_are_sampled_runs_of_the_main_thread(tmp_path: Path) -> None:
    def call(id: int, parent: int | None, name: str, ts: float, dur: float) -> Event:
        ids = {"Python id": id, "Python parent id": parent}
        return event("python_function", name, ts, dur, **ids)

    events = [
        call(1, None, "train.py(9): main", 0, 10_000),
        call(2, 1, "train.py(40): step", 2000, 6000),
        call(3, 2, "<built-in method mm of object at 0x7f1>", 4000, 2000),
    ]
    stacks = one(tmp_path, trace(events)).tables["stacks"]
    main, step = "main (train.py:9)", "step (train.py:40)"
    frames = [stacks.strings("frames")[row] for row in range(len(stacks))]
    mm = f"{main};{step};<built-in method mm of object>"
    assert frames == [main, f"{main};{step}", mm, f"{main};{step}", main]
    assert us(stacks, "duration_ns") == [2000] * 5


def test_nccl_calls_without_a_device_have_no_end(tmp_path: Path) -> None:
    comm = one(tmp_path, trace([event("user_annotation", "nccl:all_reduce", 1, 2)])).tables[
        "comm_ops"
    ]
    assert comm.ints("end_ns").tolist() == [NULL] and comm.strings("state")[0] == "done"


def test_traces_are_distinguished_from_other_json(tmp_path: Path) -> None:
    assert recognise(write(tmp_path / "a.json", trace(gpu_events())))
    assert recognise(write(tmp_path / "b.json.gz", gpu_events()))
    assert recognise(tmp_path)
    for at, other in enumerate([b"", b"{}", b"[1]", {"traceEvents": [{"ph": "X", "name": "x"}]},
                                {"entries": [], "pg_config": {}, "version": "2.4"}]):  # fmt: skip
        assert not recognise(write(tmp_path / f"other{at}.json", other))
    assert not recognise(tmp_path / "missing.json")


def test_a_loop_outside_the_first_thread_is_the_one_that_trains(tmp_path: Path) -> None:
    elsewhere = [{**e, "tid": 555} if e["tid"] == MAIN else e for e in gpu_events()]
    phases = one(tmp_path, trace(elsewhere)).tables["phases"]
    assert us(phase(phases, "forward-compute"), "duration_ns") == [100, 100]
