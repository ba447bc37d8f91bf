"""`python -m stepscope.patterns`: what the processor runs for each rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stepscope.formats.kineto import read
from stepscope.patterns.__main__ import LEFT_OUT, main
from stepscope.store.encode import arrow_table, parquet_bytes
from stepscope.trace import TABLES
from tests.formats.kineto.traces import BASE_NS, event, gpu_events, trace, write

SECOND = 10**9


def parquet(path: Path, table: str, rows: dict[str, list[Any]]) -> Path:
    path.write_bytes(parquet_bytes(arrow_table(table, rows)))
    return path


def stacks(path: Path, rank: int = 3) -> Path:
    active = [True] * 15 + [False] * 5
    return parquet(path, "stacks", {
        "rank": [rank] * 21, "thread": ["MainThread"] * 20 + ["helper"],
        "start_ns": [BASE_NS + at * 50_000 for at in range(20)] + [BASE_NS],
        "duration_ns": [0] * 21, "frames": ["main (train.py:30)"] * 20 + ["spin (x.py:2)"],
        "active": [*active, None], "gil": [None] * 21,
    })  # fmt: skip


def run(out: Path, *words: str | Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    assert main([*map(str, words), "--out", str(out)]) == 0
    table = pa.ipc.open_stream(out.read_bytes()).read_all()
    assert table.column_names == [*TABLES["patterns"].columns]
    return table.to_pylist(), json.loads(table.schema.metadata[LEFT_OUT.encode()])


def test_a_trace_of_a_gpu(tmp_path: Path) -> None:
    source = write(tmp_path / "rank3.json.gz", trace(gpu_events()))
    rows, left_out = run(tmp_path / "out", source, "--rank", "3")
    by_name = {row["function"]: row for row in rows}
    step = by_name["gemm_backward"]
    assert (step["rank"], step["kind"], step["first_step"], step["last_step"]) == (
        3,
        "kernel",
        5,
        6,
    )
    assert step["beta"] == pytest.approx(0.2, rel=1e-3) and step["calls"] == 2
    assert step["mu"] is None and step["resource"] is None and step["thread"] is None
    assert left_out["functions"] >= 0
    collective = by_name["ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)"]
    assert collective["kind"] == "collective"
    # 150 us from 400 on, of which the backward pass hides the first 40 us
    assert collective["beta"] == pytest.approx(0.11, rel=1e-3)


def test_a_folder_of_traces_has_the_same_rows(tmp_path: Path) -> None:
    source = write(tmp_path / "rank3.json", trace(gpu_events(), rank=3))
    rows, _ = run(tmp_path / "out", source, "--rank", "3")
    table = read(tmp_path).window.tables["patterns"]
    assert [table.strings("function")[at] for at in range(len(table))] == [
        row["function"] for row in rows
    ]
    for name in ("rank", "window_start_ns", "window_ns", "first_step", "last_step", "calls"):
        assert table.ints(name).tolist() == [row[name] for row in rows]
    assert np.array_equal(table.floats("beta"), [row["beta"] for row in rows])


def test_steps_and_window_as_told(tmp_path: Path) -> None:
    source = write(tmp_path / "trace.json", trace(gpu_events()))
    rows, _ = run(
        tmp_path / "out", source, "--rank", "0", "--first-step", "200", "--last-step", "219",
        "--window-start-ns", str(BASE_NS + 1_000_000), "--window-end-ns", str(BASE_NS + 1_500_000),
    )  # fmt: skip
    assert {(row["first_step"], row["last_step"]) for row in rows} == {(200, 219)}
    assert {(row["window_start_ns"], row["window_ns"]) for row in rows} == {
        (BASE_NS + 1_000_000, 500_000)
    }
    assert {row["function"]: row["calls"] for row in rows}["gemm_backward"] == 1


def test_stacks_alone(tmp_path: Path) -> None:
    """Helper threads whose state is unknown say nothing; other ranks do not count."""
    rows, _ = run(tmp_path / "out", "--rank", "3", "--stacks", stacks(tmp_path / "stacks"),
                  "--window-end-ns", str(BASE_NS + 1_000_000))  # fmt: skip
    assert [(row["function"], row["beta"], row["mu"]) for row in rows] == [("main", 1.0, 0.75)]
    none, _ = run(tmp_path / "out", "--rank", "2", "--stacks", stacks(tmp_path / "stacks"),
                  "--window-start-ns", "0", "--window-end-ns", "5")  # fmt: skip
    assert none == []


def test_use_of_the_processor_from_stacks_then_from_phases(tmp_path: Path) -> None:
    main_function = event("python_function", "train.py(9): main", 0, 1000, **{"Python id": 1})
    source = write(tmp_path / "trace.json", trace([main_function]))
    phases = parquet(tmp_path / "phases", "phases", {
        "rank": [3], "step": [1], "phase": ["forward-compute"], "microbatch": [-1],
        "start_ns": [BASE_NS], "duration_ns": [800_000], "cpu_ns": [200_000],
    })  # fmt: skip
    rows, _ = run(tmp_path / "out", source, "--rank", "3", "--phases", phases)
    assert (rows[0]["resource"], rows[0]["mu"]) == ("cpu", 0.25)
    rows, _ = run(tmp_path / "out", source, "--rank", "3", "--phases", phases,
                  "--stacks", stacks(tmp_path / "stacks"))  # fmt: skip
    assert (rows[0]["resource"], rows[0]["mu"]) == ("cpu", 0.75)


def test_counters_of_the_gpu_that_the_rank_computes_on(tmp_path: Path) -> None:
    source = write(tmp_path / "trace.json", trace(gpu_events()))
    rows: dict[str, list[Any]] = {name: [] for name in (*TABLES["hardware"].columns,)}

    def sample(metric: str, ts_us: int, value: float, rank: int = -1) -> None:
        one = (rank, "host", metric, BASE_NS + ts_us * 1000, value, 10_000)
        for column, item in zip(rows.values(), one, strict=True):
            column.append(item)

    sample("gpu_index", 0, 1.0, rank=3)
    for at in range(0, 4000, 10):
        sample("sm_active.gpu0", at, 0.1)
        sample("sm_active.gpu1", at, 0.7)
        sample("pcie_tx_bytes_per_s.gpu1", at, 16e9)
    sample("pcie_link_gb_per_s.gpu1", 0, 32.0)
    counters = parquet(tmp_path / "hardware", "hardware", rows)
    found, _ = run(tmp_path / "out", source, "--rank", "3", "--counters", counters)
    use = {row["function"]: (row["resource"], row["mu"], row["sigma"]) for row in found}
    assert use["gemm_backward"] == ("sm", pytest.approx(0.7), pytest.approx(0))
    collective = use["ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)"]
    assert collective == ("pcie", pytest.approx(0.5), pytest.approx(0))
    assert use["Memcpy HtoD (Pinned -> Device)"] == (None, None, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rank", "0"], "give a trace, or --stacks"),
        (["missing.json", "--rank", "0"], "missing.json"),
        (["--rank", "0", "--stacks", "missing"], "cannot read missing"),
        (["--rank", "0", "--stacks", "noise"], "noise"),
        (["noise", "--rank", "0"], "not a PyTorch profiler trace"),
        (["t.json", "--rank", "0", "--window-end-ns", "5"], "before it begins"),
        (["t.json", "--rank", "0", "--out", "no/such/folder"], "cannot write"),
    ],
)
def test_errors_are_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("noise").write_bytes(b"\x00\x01noise")
    write(Path("t.json"), trace(gpu_events()))
    assert main(words) == 2
    text = capsys.readouterr().err
    assert said in text and text.count("\n") == 1
