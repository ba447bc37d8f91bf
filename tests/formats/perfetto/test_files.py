"""The files that the processor writes while a job runs, and what else may lie beside them."""

from __future__ import annotations

import gzip
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.errors import SourceError
from stepscope.formats import perfetto
from stepscope.perfetto.members import packed
from stepscope.perfetto.packets import clock_packet
from stepscope.perfetto.protobuf import field
from stepscope.trace import Fabric, Host, Job, ProcessGroup, Switch
from stepscope.window import NULL, Window
from tests.diagnose.jobs import a_table
from tests.perfetto.test_growing import T0, Recorder, S, kernels, phase

from .written import rows, timeline

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job folder with traces of two ranks and of a host: three members, in two minutes."""
    folder = tmp_path / "JOB"
    folder.mkdir()
    recorder = Recorder(folder)
    usage = {"rank": [-1], "host": ["host-0"], "metric": ["cpu_util"], "ts_ns": [T0 + 9],
             "value": [0.5]}  # fmt: skip
    recorder.traces.append("hardware", usage)
    recorder.traces.append("phases", phase(3, 10, 30))
    recorder.tell(5, kernels(3, (10, 30), (50, 5)), kernels(4, (7, 2)))
    recorder.tell(10, kernels(3, *((S + 20 * n, 9) for n in range(500)), name="flash"))
    recorder.tell(70, kernels(3, (62 * S, 5)), kernels(4, (62 * S, 6)))
    return folder


def of_kernels(window: Window) -> list[tuple[object, ...]]:
    return rows(window.tables["kernels"], "rank", "kernel", "start_ns", "duration_ns")


def test_a_folder_of_a_rank_per_folder(job: Path) -> None:
    reading = perfetto.read(job / "traces")
    assert reading.problems == ()
    window = reading.window
    assert window.job.job_id == "JOB"
    assert window.job.hosts == (Host("host-0", (3, 4)),)
    assert (window.job.world_size, window.job.recorded_ranks) == (16, (3, 4))
    found = of_kernels(window)
    assert len(found) == 505
    assert found[0] == (3, "flash", T0 + S, 9)
    assert rows(window.tables["phases"], "rank", "phase", "start_ns") == [(3, "optimizer", T0 + 10)]
    assert rows(window.tables["hardware"], "rank", "host", "value") == [(-1, "host-0", 0.5)]


def test_what_each_host_knows_of_the_job_is_joined(tmp_path: Path) -> None:
    leaf = Fabric((Switch("leaf-0", 0, ("host-0/nic-0",)),))
    for number in range(2):
        recorder = Recorder(tmp_path, f"host-{number}")
        group = ProcessGroup(f"tp-{number}", "tp", (2 * number, 2 * number + 1))
        host = Host(f"host-{number}", group.ranks)
        recorder.traces.job = Job("job", 4, (host,), groups=(group,))
        recorder.tell(5, kernels(2 * number, (10, 30)))
        recorder.traces.job = replace(recorder.traces.job, fabric=None if number else leaf)
        recorder.tell(70, kernels(2 * number + 1, (61 * S, 30)))
    job = perfetto.read(tmp_path / "traces").window.job
    assert job.hosts == (Host("host-0", (0, 1)), Host("host-1", (2, 3)))
    assert [group.id for group in job.groups] == ["tp-0", "tp-1"]
    assert job.fabric == leaf


def test_operators_that_are_outstanding_at_the_end_of_the_job(job: Path) -> None:
    recorder = Recorder(job)
    recorder.tell(80, phase(3, 78 * S, 5))
    recorder.traces.outstanding = {
        "rank": [4], "step": [7], "group": ["tp-0"], "op": ["AllReduce"], "seq": [9], "peer": [-1],
        "bytes": [64], "enqueue_ns": [T0 + 77 * S], "start_ns": [T0 + 77 * S], "end_ns": [NULL],
        "state": ["started"],
    }  # fmt: skip
    recorder.traces.close(T0 + 500 * S)
    operators = perfetto.read(job / "traces").window.tables["comm_ops"]
    assert rows(operators, "rank", "op", "seq", "end_ns", "state") == [
        (4, "AllReduce", 9, NULL, "started")
    ]


def test_a_copy_a_flat_folder_and_one_file(job: Path, tmp_path: Path) -> None:
    shutil.copytree(job / "traces", tmp_path / "copy")
    flat = tmp_path / "flat"
    flat.mkdir()
    for file in (job / "traces").rglob("*.gz"):
        shutil.copy(file, flat / f"{file.parent.name}-{file.name}")
    found = of_kernels(perfetto.read(job / "traces").window)
    for folder in (tmp_path / "copy", flat):
        reading = perfetto.read(folder)
        assert (of_kernels(reading.window), reading.window.job.job_id) == (found, folder.name)
    files = sorted((job / "traces" / "rank=3").iterdir())
    assert len(files) == 2
    first = perfetto.read(files[0]).window
    assert (len(of_kernels(first)), first.job.job_id) == (502, "JOB")


def test_a_file_twice_counts_once(job: Path) -> None:
    found = of_kernels(perfetto.read(job / "traces").window)
    shutil.copytree(job / "traces", job / "traces" / "again")
    reading = perfetto.read(job / "traces")
    assert of_kernels(reading.window) == found
    assert reading.problems == ("traces: 507 rows are in several of the files and count once",)


def test_a_job_folder_is_still_read_as_one(job: Path, capsys: Capture) -> None:
    assert perfetto.recognise(job / "traces")
    (job / "job.json").write_text('{"schema": 1, "job_id": "JOB", "world_size": 16, "hosts": []}')
    assert main(["diagnose", str(job)]) == 2
    assert "no data: nothing was recorded" in capsys.readouterr().err


def test_a_member_that_was_cut_off(job: Path) -> None:
    [first, _] = sorted((job / "traces" / "rank=3").iterdir())
    whole = first.read_bytes()
    complete = set(of_kernels(perfetto.read(first).window))
    first.write_bytes(whole[: len(whole) // 2])
    reading = perfetto.read(first)
    found = of_kernels(reading.window)
    assert 2 <= len(found) < 502
    assert set(found) <= complete
    assert reading.problems == (
        f"{first.name}: its gzip data is truncated; what was read before is used",
    )


@pytest.mark.parametrize("cut", [1, 7, 40, 71, 100])
def test_an_uncompressed_file_that_was_cut_off(tmp_path: Path, cut: int) -> None:
    steps = a_table("rank step start_ns duration_ns", [(0, n, T0 + 10 * n, 9) for n in range(50)])
    path = tmp_path / "it.perfetto-trace"
    path.write_bytes(timeline(Window(Job("job", 1), {"steps": steps}))[:-cut])
    reading = perfetto.read(path)
    found = rows(reading.window.tables["steps"], "step", "start_ns", "duration_ns")
    assert found == [(n, T0 + 10 * n, 9) for n in range(len(found))]
    assert 45 <= len(found) < 50
    [problem] = reading.problems
    assert "no complete packet" in problem


def test_other_bytes_among_the_packets(tmp_path: Path) -> None:
    steps = a_table("rank step start_ns duration_ns", [(0, n, T0 + 10 * n, 9) for n in range(50)])
    data = timeline(Window(Job("job", 1), {"steps": steps}))
    path = tmp_path / "it.perfetto-trace"
    foreign = field(1, field(8, 5) + field(11, field(9, 2) + field(11, 77)))
    path.write_bytes(data + foreign + b"no packet")
    reading = perfetto.read(path)
    assert len(reading.window.tables["steps"]) == 50
    damaged, unread = reading.problems
    assert "its contents are damaged: no packet begins there" in damaged
    assert "1 packets that stepscope does not write are left out" in unread


def test_files_of_two_jobs_are_not_mixed(tmp_path: Path) -> None:
    for name, at in (("a", T0), ("b", T0 + 3)):
        steps = a_table("rank step start_ns duration_ns", [(0, n, at + 9 * n, 9) for n in range(3)])
        file = tmp_path / f"{name}.perfetto-trace"
        file.write_bytes(timeline(Window(Job("job", 1), {"steps": steps})))
    with pytest.raises(SourceError, match=r"step 0 at different times in a\.perf.* and b\.perf"):
        perfetto.read(tmp_path)


def test_traces_of_other_programs(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "android.perfetto-trace"
    path.write_bytes(field(1, field(10, 1)) * 100)
    for source in (path, tmp_path):
        assert main(["diagnose", str(source)]) == 2
        shown = capsys.readouterr().err
        assert "was not written by stepscope" in shown
        assert shown.count("\n") == 1


@pytest.mark.parametrize("data", [b"", clock_packet(), packed(clock_packet()), b"\x1f\x8b"])
def test_traces_without_anything(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "it.perfetto-trace").write_bytes(data)
    with pytest.raises(SourceError, match="no Perfetto trace of any rank"):
        perfetto.read(tmp_path)


def test_more_rows_than_fit_into_memory(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.formats.perfetto.gathered.MOST_SLICES", 500)
    with pytest.raises(SourceError, match="more than 500 slices"):
        perfetto.read(job / "traces")


def test_a_small_file_of_much_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.formats.perfetto.gathered.MOST_UNPACKED_BYTES", 1 << 20)
    (tmp_path / "it.perfetto-trace.gz").write_bytes(
        gzip.compress(clock_packet() + field(1, field(10, 1)) * 300_000)
    )
    with pytest.raises(SourceError, match="of data"):
        perfetto.read(tmp_path)
