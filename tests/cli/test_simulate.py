"""`stepscope simulate`: a folder that can be diagnosed, and the truth beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli import main
from stepscope.cli.streaming import StoreSink, stream
from stepscope.simulate import FAULTS, Scenario, Truth, parse_fault, simulate
from stepscope.simulate.live import slices
from stepscope.simulate.parse import from_values
from stepscope.simulate.record.moment import EPOCH_NS
from stepscope.simulate.run import prepare
from stepscope.store import JobReader, Location
from stepscope.window import NULL, Table, Window

Capture = pytest.CaptureFixture[str]
SMALL = ["--ranks", "8", "--steps", "40", "--microbatches", "2"]


def refused(capsys: Capture, *arguments: str | Path) -> str:
    """One line that says why."""
    assert main(["simulate", *map(str, arguments)]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("stepscope: ") and shown.err.count("\n") == 1
    return shown.err


def truth_of(folder: Path) -> Truth:
    text = folder.with_name(f"{folder.name}.truth.json").read_text(encoding="utf-8")
    return Truth.from_json(json.loads(text))


def diagnosed(folder: Path, capsys: Capture) -> Any:
    main(["diagnose", str(folder), "--json"])
    return json.loads(capsys.readouterr().out)


def test_the_slow_rank_is_found_and_the_truth_lies_beside_the_folder(
    tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "practice"
    assert main(["simulate", *SMALL, "--fault", "gpu_slow:rank=5,factor=2", "--out", str(out)]) == 0
    assert capsys.readouterr().err == (
        f"stepscope: wrote {out}; its true faults: {out}.truth.json; "
        f"next: `stepscope diagnose {out}`\n"
    )
    [fault] = truth_of(out).faults
    assert (fault.cause, fault.ranks, fault.hosts) == ("compute", (5,), ("host-000",))
    assert not [path for path in out.rglob("*") if "truth" in path.name]
    found = diagnosed(out, capsys)
    assert found["job_id"] == "practice"
    assert found["verdicts"][0]["ranks"] == [5]


def test_a_file_says_what_flags_cannot_and_flags_come_on_top(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('ranks = 4\nsteps = 9\nname = "llama"\n[noise]\ncheckpoint_every = 0\n'
                    '[[fault]]\nname = "gc"\nrank = 2\n', encoding="utf-8")  # fmt: skip
    out = tmp_path / "job"
    assert main(["simulate", str(file), "--steps", "3", "--out", str(out)]) == 0
    assert [fault.fault for fault in truth_of(out).faults] == ["gc"]
    job = json.loads((out / "job.json").read_text(encoding="utf-8"))
    assert (job["job_id"], job["world_size"]) == ("llama", 4)


def test_flags_change_single_keys_of_a_section(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("ranks = 8\nsteps = 2\n[parallelism]\ntp = 2\nmicrobatches = 2\n")
    out = tmp_path / "job"
    assert main(["simulate", str(file), "--pp", "2", "--out", str(out)]) == 0
    job = json.loads((out / "job.json").read_text(encoding="utf-8"))
    assert job["parallelism"] == {"tp": 2, "cp": 1, "pp": 2, "dp": 2, "ep": 1}
    assert job["schedule"]["microbatches"] == 2


def test_dp_alone_sets_the_number_of_ranks(tmp_path: Path) -> None:
    out = tmp_path / "job"
    few = ["--steps", "2", "--microbatches", "2"]
    assert main(["simulate", *few, "--dp", "4", "--tp", "2", "--out", str(out)]) == 0
    job = json.loads((out / "job.json").read_text(encoding="utf-8"))
    assert job["parallelism"] == {"tp": 2, "cp": 1, "pp": 1, "dp": 4, "ep": 1}


def test_every_fault_is_explained(capsys: Capture) -> None:
    assert main(["simulate", "--list-faults"]) == 0
    shown = capsys.readouterr().out
    for name, fault in FAULTS.items():
        assert f"\n{name}\n" in shown
        assert fault.help.split()[0] in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--out"]),
        (["--out", "x", "--fault", "gpu_fast:rank=1"], ["gpu_fast", "--list-faults"]),
        (["--out", "x", "--fault", "gpu_slow:rank=99"], ["99", "0 to 63"]),
        (["--out", "x", "--fault", "gpu_slow:speed=2"], ["speed", "factor"]),
        (["--out", "x", "--fault", "gpu_slow"], ["needs ranks"]),
        (["--out", "x", "--fault", "gpu_slow:rank=a"], ["rank=a", "whole number"]),
        (["--out", "x", "--fault", "gpu_slow:rank"], ["key=value"]),
        (["--out", "x", "--ranks", "9", "--tp", "2"], ["9 ranks", "tp=2"]),
        (["--out", "x", "--ranks", "0"], ["ranks=0"]),
        (["--out", "x", "--ep", "2"], ["experts"]),
        (["--out", "x", "--workload", "sparse"], ["sparse", "dense, moe, variable"]),
        (["--out", "x", "--dp", "3", "--ranks", "8"], ["--dp 3"]),
        (["nowhere.toml", "--out", "x"], ["nowhere.toml"]),
        (["job.toml", "--case", "venus-1", "--out", "x"], ["not both"]),
    ],
)
def test_nonsense_is_refused_in_one_line(
    arguments: list[str], words: list[str], capsys: Capture, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    message = refused(capsys, *arguments)
    for word in words:
        assert word in message
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_left_alone(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "job.json").write_text("{}", encoding="utf-8")
    assert "already exists" in refused(capsys, *SMALL, "--out", tmp_path)


def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "job.toml").write_text("ranks = ", encoding="utf-8")
    message = refused(capsys, tmp_path / "job.toml", "--out", tmp_path / "job")
    assert "not valid TOML" in message


def test_the_folder_reads_back_as_simulated(tmp_path: Path) -> None:
    out = tmp_path / "simulated"
    window = simulate(
        from_values({"ranks": 4, "steps": 3, "parallelism": {"microbatches": 2}})
    ).window
    few = ["--ranks", "4", "--steps", "3", "--microbatches", "2"]
    assert main(["simulate", *few, "--out", str(out)]) == 0
    read = JobReader(str(out)).refresh()
    assert read.job == window.job
    for name, table in window.tables.items():
        assert len(read.tables[name]) == len(table), name
        for column in table.columns:
            assert _rows(read.tables[name], column) == _rows(table, column), (name, column)


def _rows(table: Table, column: str) -> list[str]:
    values = table.columns[column]
    return sorted(str(values[at]) for at in range(len(table)))


class Time:
    """A clock that a sleeper moves."""

    def __init__(self) -> None:
        self.now_ns = 10**18
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ns += int(seconds * 1e9)


def streamed(folder: Path, *faults: str) -> tuple[Scenario, Time, Window]:
    values = {"ranks": 4, "steps": 6, "parallelism": {"microbatches": 2}}
    scenario = replace(from_values(values), faults=tuple(map(parse_fault, faults)))
    time = Time()
    epoch_ns = time.now_ns
    job = prepare(scenario).world.cluster.job()
    sink = StoreSink(job, Location.parse(str(folder)), None, 1.0)
    stream(slices(scenario, epoch_ns), sink, epoch_ns, lambda: time.now_ns, time.sleep)
    sink.close()
    return scenario, time, JobReader(str(folder)).refresh()


def test_a_live_job_takes_its_time_and_says_the_same(tmp_path: Path) -> None:
    scenario, time, live = streamed(tmp_path / "simulated")
    window = simulate(scenario).window
    steps = window.tables["steps"]
    took = int((steps.ints("start_ns") + steps.ints("duration_ns")).max()) - EPOCH_NS
    assert sum(time.slept) == pytest.approx(took / 1e9, abs=0.01)  # clocks of hosts differ
    assert live.job.observed_until_ns is None
    for name, table in window.tables.items():
        if name != "kernel_summaries":  # minutes that are not over
            assert len(live.tables[name]) == len(table), name


def test_a_live_hang_is_watched_while_nothing_happens(tmp_path: Path) -> None:
    scenario, time, live = streamed(tmp_path / "simulated", "hang:rank=2,from=4")
    window = simulate(scenario).window
    assert len(time.slept) > 50
    assert live.job.observed_until_ns is not None
    comm, same = live.tables["comm_ops"], window.tables["comm_ops"]
    assert len(comm) == len(same)
    assert (comm.ints("end_ns") == NULL).sum() == (same.ints("end_ns") == NULL).sum() > 0


def test_live_writes_the_truth_first(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "job"
    few = ["--ranks", "2", "--steps", "1", "--microbatches", "1", "--fault", "gc:rank=1,ms=1"]
    assert main(["simulate", *few, "--live", "--out", str(out)]) == 0
    assert [one.fault for one in truth_of(out).faults] == ["gc"]
    assert "--follow" in capsys.readouterr().err
    assert len(JobReader(str(out)).refresh().tables["steps"]) == 2
