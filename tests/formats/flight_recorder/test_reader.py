"""From files of all names and kinds to a Window."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.diagnose.run import diagnose
from stepscope.errors import FormatError, SourceError
from stepscope.formats.flight_recorder import read, recognise
from stepscope.formats.flight_recorder.dump import Dump, operator_of, parse, stack_of
from stepscope.trace import Host, ProcessGroup
from stepscope.window import NULL, Window

from .recorders import Groups, Recorder, a_job, everyone, window_of, write


def small_job(
    ranks: int = 2, backend: str = "nccl", groups: Groups | None = None
) -> list[Recorder]:
    job = a_job(ranks, backend, groups)
    everyone(job, "all_reduce", times=2, size=(3, 5), dtype="BFloat16")
    return job


def rows(window: Window, *names: str) -> list[tuple[Any, ...]]:
    table = window.tables["comm_ops"]
    columns = [[table.columns[name][row] for row in range(len(table))] for name in names]
    return list(zip(*columns, strict=True))


def test_a_window_of_two_ranks(tmp_path: Path) -> None:
    window = window_of(tmp_path / "my-job", small_job())
    assert (window.job.job_id, window.job.world_size) == ("my-job", 2)
    assert window.job.recorded_ranks == (0, 1)
    assert window.job.groups == (ProcessGroup("world-0", "world", (0, 1)),)
    assert rows(window, "rank", "group", "seq", "op", "peer", "bytes", "state", "call")[:2] == [
        (0, "world-0", 1, "AllReduce", -1, 30, "done", "all_reduce"),
        (0, "world-0", 2, "AllReduce", -1, 30, "done", "all_reduce"),
    ]
    stacks = window.tables["stacks"]
    assert stacks.strings("frames")[0] == (
        "<module> (/job/train.py:99);before_all_reduce (/job/train.py:2);"
        "all_reduce (/opt/torch/distributed/distributed_c10d.py:7)"
    )
    assert (len(stacks), stacks.ints("duration_ns").tolist()) == (2, [0, 0])


@pytest.mark.parametrize("form", ["pickle", "json"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "comm_lib_trace_rank_{rank}",
        "nccl_trace_rank_{rank}",
        "comm_traces/rank_{rank}",
        "nccl_trace_rank_host-17_{rank}",
        "nccl_trace_rank_container-node02_{rank}.json",
        "step-10/of 3/my2prefix{rank}.pkl",
        "rank_{rank}/trace.bin",
    ],
)
def test_names_in_use(tmp_path: Path, name: str, form: str, packed: bool) -> None:
    write(tmp_path, small_job(), form, name=name)
    if packed:
        for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    assert recognise(tmp_path)
    dumps = read(tmp_path)
    assert (dumps.problems, dumps.window.job.recorded_ranks) == ((), (0, 1))


def test_both_forms_say_the_same(tmp_path: Path) -> None:
    names = ("rank", "group", "seq", "op", "bytes", "state", "enqueue_ns", "given", "shape")
    forms = [read(write(tmp_path / form, small_job(), form)).window for form in ("pickle", "json")]
    assert rows(forms[0], *names) == rows(forms[1], *names)


def test_hosts_in_names(tmp_path: Path) -> None:
    write(tmp_path, small_job(3), name="nccl_trace_rank_gpu-node-07_{rank}")
    assert read(tmp_path).window.job.hosts == (Host("gpu-node-07", (0, 1, 2)),)


def test_a_rank_that_the_dump_itself_names(tmp_path: Path) -> None:
    for at, one in enumerate(small_job()):
        data = {**one.dump(), "rank": one.rank}
        (tmp_path / f"trace_rank_{7 - at}").write_bytes(pickle.dumps(data))
    assert read(tmp_path).window.job.recorded_ranks == (0, 1)


def test_a_single_file(tmp_path: Path) -> None:
    write(tmp_path, small_job())
    one = tmp_path / "nccl_trace_rank_1"
    assert recognise(one)
    assert read(one).window.job.recorded_ranks == (1,)


def test_two_files_of_one_rank(tmp_path: Path) -> None:
    write(tmp_path / "a", small_job())
    write(tmp_path / "b", small_job())
    with pytest.raises(FormatError, match=r"rank 0 has two dumps, .*a/nccl.* and .*b/nccl\w+: "):
        read(tmp_path)


BROKEN = {
    "empty": b"",
    "cut off": pickle.dumps(a_job(1)[0].dump())[:-20],
    "damaged gzip": gzip.compress(b'{"entries": []}' * 50)[:-12],
    "nested deeper": b'{"pg_config":' + b"[" * 100_000,
    "damaged JSON": b'{"pg_config": {}, "entries": [',
    "not a Flight Recorder dump": b"\x80\x02]K\x01a.",
    "more than plain data": b"\x80\x02cos\nsystem\n(X\x01\x00\x00\x00xtR.",
}


@pytest.mark.parametrize("why", BROKEN)
def test_a_broken_file_is_named_and_the_others_are_read(tmp_path: Path, why: str) -> None:
    write(tmp_path, small_job())
    (tmp_path / "nccl_trace_rank_2").write_bytes(BROKEN[why])
    dumps = read(tmp_path)
    (problem,) = dumps.problems
    assert problem.startswith(f"{tmp_path}/nccl_trace_rank_2: ")
    assert why in problem
    assert "\n" not in problem
    assert dumps.window.job.recorded_ranks == (0, 1)


@pytest.mark.parametrize("why", BROKEN)
def test_nothing_but_broken_files(tmp_path: Path, why: str) -> None:
    (tmp_path / "nccl_trace_rank_2").write_bytes(BROKEN[why])
    with pytest.raises(FormatError, match=f"nccl_trace_rank_2: .*{why}"):
        read(tmp_path)


def test_other_files_are_none_of_ours(tmp_path: Path) -> None:
    kineto = {"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": [{"ph": "X"}]}
    (tmp_path / "rank0.1234.pt.trace.json").write_text(json.dumps(kineto))
    (tmp_path / "README.md").write_text("collective_seq_id")
    (tmp_path / "rank_0.log").write_text("started")
    assert not recognise(tmp_path)
    assert not recognise(tmp_path / "nowhere")
    with pytest.raises(SourceError, match=r"no Flight Recorder dump in .*: found README.md"):
        read(tmp_path)
    write(tmp_path, small_job())
    assert read(tmp_path).problems == ()


def test_dumps_are_not_expanded(tmp_path: Path) -> None:
    """A thousand entries that share one list of sizes of one list of sizes."""
    sizes = b"](" + b"](" + b"K\x01" * 30 + b"e" * 1 + b"q\x01" + b"h\x01" * 5000 + b"eq\x02"
    entry = b"}(X\x0b\x00\x00\x00input_sizesh\x02X\x0e\x00\x00\x00profiling_nameX\x01\x00\x00\x00au"
    data = b"\x80\x02" + sizes + b"0}X\x07\x00\x00\x00entries](" + entry + b"q\x03"
    data += b"h\x03" * 20_000 + b"es."
    (tmp_path / "rank_0").write_bytes(data)
    assert len(read(tmp_path).window.tables["comm_ops"]) == 20_001


def test_kinds_of_groups(tmp_path: Path) -> None:
    groups: Groups = {
        "1": ("mesh_tp", (0, 1)),
        "2": ("DATA_PARALLEL_GROUP", (0, 2)),
        "3": ("undefined", (1, 2)),
        "4": ("PIPELINE_MODEL_PARALLEL_GROUP", (2, 0)),
        "5": ("EXPERT_MODEL_PARALLEL_GROUP", (0, 1, 2)),
        "6": ("undefined", (0, 1, 2)),
    }
    job = window_of(tmp_path, small_job(3, groups=groups)).job
    assert {group.id: group.ranks for group in job.groups} == {
        "world-0": (0, 1, 2), "tp-1": (0, 1), "dp-2": (0, 2), "other-3": (1, 2), "pp-4": (2, 0),
        "ep-5": (0, 1, 2), "world-6": (0, 1, 2),
    }  # fmt: skip


def test_groups_of_one_name_and_other_members(tmp_path: Path) -> None:
    """After a split, the parts may share a name."""
    left: Groups = {"0": ("default_pg", (0, 1, 2, 3)), "0:split": ("tp", (0, 1))}
    right: Groups = {"0": ("default_pg", (0, 1, 2, 3)), "0:split": ("tp", (2, 3))}
    ranks = [Recorder(rank, left if rank < 2 else right) for rank in range(4)]
    everyone(ranks, "all_reduce", "0:split", times=3)
    everyone(ranks[:2], "all_reduce", "0:split")
    window = window_of(tmp_path, ranks)
    assert [(g.id, g.ranks) for g in window.job.groups if g.kind == "tp"] == [
        ("tp-0:split", (0, 1)), ("tp-0:split-2", (2, 3))]  # fmt: skip
    assert diagnose(window).verdicts == ()


def test_peers_are_global_ranks(tmp_path: Path) -> None:
    ranks = a_job(8, groups={"pp": ("pp", (1, 3, 7))})
    ranks[3].send(7, "pp")
    ranks[7].recv(3, "pp")
    window = window_of(tmp_path, ranks)
    assert rows(window, "rank", "op", "peer", "seq") == [(3, "Send", 7, 1), (7, "Recv", 3, 1)]


def test_dumps_without_entries_are_of_ranks_that_called_nothing(tmp_path: Path) -> None:
    ranks = small_job()
    write(tmp_path, ranks)
    empty = a_job(2)[1].dump()
    del empty["entries"]  # as JSON leaves them out where there are none
    (tmp_path / "nccl_trace_rank_1").write_text(json.dumps(empty))
    assert read(tmp_path).window.job.recorded_ranks == (0, 1)


def test_early_versions() -> None:
    """2.3 has one sequence number, groups without description, no flag for sends."""
    entry = {"pg_id": 3, "process_group": "dp", "seq_id": 17, "profiling_name": "nccl:recv 0<-1",
             "input_sizes": [[4]], "output_sizes": [[4]], "state": "started",
             "time_created_us": 1_700_000_000_000_000}  # fmt: skip
    (one,) = parse({"version": "1.5", "entries": [entry]}).entries
    assert (one.group, one.seq, one.op, one.peer, one.is_p2p) == ("dp", 17, "Recv", 1, True)
    assert (one.seen, one.created_ns) == ("started", 1_700_000_000_000_000_000)
    assert one.given.bytes is None


@pytest.mark.parametrize(
    ("call", "op"),
    [
        ("_all_gather_base", "AllGather"), ("all_gather_into_tensor_coalesced", "AllGather"),
        ("ALLGATHER_coalesced", "AllGather"), ("_reduce_scatter_base", "ReduceScatter"),
        ("reduce_scatter_tensor_coalesced", "ReduceScatter"), ("REDUCE_SCATTER_coalesced",
        "ReduceScatter"), ("allreduce_coalesced", "AllReduce"), ("all_reduce_barrier", "Barrier"),
        ("_broadcast_oop", "Broadcast"), ("_reduce_oop", "Reduce"), ("gather", "Gather"),
        ("all_to_all_v_single", "AllToAll"), ("scatter", "Scatter"), ("split", None),
    ],
)  # fmt: skip
def test_names_of_operators(call: str, op: str | None) -> None:
    assert operator_of(call) == op


def test_frames_hold_no_separators() -> None:
    frames = [{"name": "a;b", "filename": "x\ny.py", "line": "7"}, {"line": 1}, None]
    assert stack_of(frames) == "? (:1);a,b (x y.py:0)"


ODD = st.none() | st.integers() | st.text(max_size=5) | st.booleans() | st.floats()
VALUES = st.recursive(
    ODD, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=3), one,
    max_size=3), max_leaves=6)  # fmt: skip
KEYS = st.sampled_from([
    "process_group", "collective_seq_id", "p2p_seq_id", "record_id", "profiling_name", "state",
    "input_sizes", "input_dtypes", "output_sizes", "output_dtypes", "time_created_ns", "retired",
    "timeout_ms", "is_p2p", "frames", "pg_id",
])  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(KEYS, VALUES | st.sampled_from(["nccl:send 0->1", "gloo:x"]),
                                max_size=8), max_size=4), VALUES, VALUES)  # fmt: skip
def test_entries_of_any_shape(entries: list[dict[str, Any]], config: Any, rank: Any) -> None:
    data = {"version": 3, "pg_config": config, "rank": rank, "entries": entries}
    dump = parse(data)
    assert isinstance(dump, Dump)
    assert len(dump.entries) <= len(entries)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_folder_with_one_file_damaged(tmp_path_factory: pytest.TempPathFactory,
                                        data: st.DataObject) -> None:  # fmt: skip
    """Whatever is changed in one file, the folder is read, or one line says why not."""
    folder = write(tmp_path_factory.mktemp("d"), small_job(3), data.draw(st.sampled_from(
        ["pickle", "json"])))  # fmt: skip
    path = folder / "nccl_trace_rank_1"
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    dumps = read(folder)
    assert diagnose(dumps.window).job_id == folder.name
    assert all("\n" not in problem for problem in dumps.problems)
    assert dumps.window.tables["comm_ops"].ints("bytes").min() >= NULL


def test_many_bytes_are_read_by_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, small_job(6))
    (tmp_path / "nccl_trace_rank_6").write_bytes(b"")
    alone = read(tmp_path)
    monkeypatch.setattr("stepscope.formats.flight_recorder.reader.PARALLEL_BYTES", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    together = read(tmp_path)
    assert together.problems == alone.problems
    assert together.window.job == alone.window.job
    assert rows(together.window, "rank", "seq", "state") == rows(
        alone.window, "rank", "seq", "state"
    )
