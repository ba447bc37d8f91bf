"""The ledger in the store: many writers, damaged objects, and its bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.devices import Shelf
from stepscope.devices.constants import LEAST_OF_A_JOB, MOST_OF_A_JOB
from stepscope.devices.record import from_bytes, to_bytes
from stepscope.errors import FormatError, SourceError
from stepscope.store import JobWriter, Location, job_location
from stepscope.store.source import open_job
from stepscope.trace import Job
from tests.devices.jobs import CABLE, GPU, HOST, NIC, OTHER, a_job, blame

ROOT = Path(__file__).parents[2]
A_JOB = a_job("job-1", 0, blame(0.96, (GPU, 0.96), (HOST, 0.04)), healthy=(OTHER, NIC))
WRITER = """
import sys
from dataclasses import replace
from stepscope.devices import Shelf
from stepscope.store import Location
from tests.devices.jobs import GPU, a_job, blame
store, host = sys.argv[1:]
shelf = Shelf(Location.parse(store))
print("ready", flush=True)
sys.stdin.readline()
for at in range(40):
    shelf.put(a_job(f"{host}-{at}", 0, blame(0.96, (GPU, 1.0)), writer=host))
    shelf.put(a_job("shared", 0, blame(0.96, (GPU, 1.0)), writer=host, ranks=at))
"""


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(Location.parse(str(tmp_path)))


def test_evidence_survives_the_store(shelf: Shelf) -> None:
    shelf.put(A_JOB)
    [read] = shelf.read().jobs
    assert read == replace(A_JOB, blames=read.blames, healthy=read.healthy)
    for one, other in zip(read.healthy, A_JOB.healthy, strict=True):
        assert one.devices == other.devices
        assert one.log_odds == pytest.approx(other.log_odds, abs=1e-4)
    [before], [after] = A_JOB.blames, read.blames
    assert after.candidates == before.candidates
    assert after.log_odds == pytest.approx(before.log_odds, abs=1e-4)


def test_the_file_of_a_job(shelf: Shelf, tmp_path: Path) -> None:
    shelf.put(A_JOB)
    data = json.loads((tmp_path / "_devices/job-1/host-0.json").read_bytes())
    assert data["blamed"][0]["candidates"][0] == {
        "type": "gpu", "name": "host-0/gpu-3", "share": 0.96
    }  # fmt: skip
    assert [one["devices"] for one in data["healthy"]] == [
        {"gpu": ["host-0/gpu-4"]}, {"nic": ["host-1/nic-0"]}
    ]  # fmt: skip
    assert data["ids"] == {"host-0/gpu-3": "GPU-3f"}


def test_a_job_replaces_what_it_said_before(shelf: Shelf) -> None:
    shelf.put(A_JOB)
    shelf.put(a_job("job-1", 1, healthy=(GPU,)))
    [read] = shelf.read().jobs
    assert read.blames == ()


def test_of_several_hosts_the_one_that_saw_most_counts(shelf: Shelf) -> None:
    shelf.put(a_job("job", 2, writer="host-0", ranks=8))
    shelf.put(a_job("job", 1, writer="host-1", ranks=16))
    shelf.put(a_job("job", 0, writer="host-2", ranks=16))
    assert [one.writer for one in shelf.read().jobs] == ["host-1"]


def test_processes_that_write_at_the_same_time_lose_nothing(shelf: Shelf, tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), f"host-{at}"], cwd=ROOT,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for at in range(2)
    ]  # fmt: skip
    for one in writers:
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
    for one in writers:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    while any(one.poll() is None for one in writers):
        assert not shelf.read().problems, "a reader sees whole objects only"
    assert [one.wait() for one in writers] == [0, 0]
    for one in writers:
        one.communicate()
    names = {one.job for one in shelf.read().jobs}
    assert names == {"shared", *(f"host-{host}-{at}" for host in range(2) for at in range(40))}
    assert len(list((tmp_path / "_devices/shared").iterdir())) == 2


def test_a_damaged_object_is_reported_and_the_rest_counts(shelf: Shelf, tmp_path: Path) -> None:
    shelf.put(A_JOB)
    folder = tmp_path / "_devices/job-2"
    folder.mkdir()
    (folder / "host-0.json").write_bytes(to_bytes(A_JOB)[:100])
    (folder / "notes.txt").write_text("not ours")
    read = shelf.read()
    assert [one.job for one in read.jobs] == ["job-1"]
    [problem] = read.problems
    assert problem.startswith(f"{tmp_path}/_devices/job-2/host-0.json: it is no evidence of a job")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"schema": 2}, "its schema is not 1; a newer stepscope may have written it"),
        ({"time_ns": [0, -1]}, "-1 is no time"),
        ({"job": None, "blamed": 3}, "not iterable"),
        ({"unjudged": {"toaster": ["a"]}}, "toaster 'a' is no device"),
        ({"unjudged": {"gpu": [""]}}, "gpu '' is no device"),
        ({"healthy": [{"devices": {}}]}, "it lacks 'log_odds'"),
    ],
)
def test_what_is_refused(change: dict[str, Any], why: str) -> None:
    data = json.loads(to_bytes(A_JOB)) | change
    with pytest.raises(FormatError, match="no evidence of a job") as error:
        from_bytes(json.dumps(data).encode())
    assert why in str(error.value)


def test_no_object_says_more_than_a_job_may() -> None:
    data = json.loads(to_bytes(A_JOB))
    data["blamed"][0]["log_odds"], data["healthy"][0]["log_odds"] = 1e6, -1e6
    read = from_bytes(json.dumps(data).encode())
    said = (read.blames[0].log_odds, read.healthy[0].log_odds)
    assert said == (MOST_OF_A_JOB, LEAST_OF_A_JOB)
    data["blamed"][0]["candidates"] = [{"type": "link", "name": CABLE.name, "share": 0.5}]
    assert from_bytes(json.dumps(data).encode()).blames[0].candidates[0].share == 1.0
    data["blamed"][0]["candidates"] = []
    with pytest.raises(FormatError, match="no candidate has a share"):
        from_bytes(json.dumps(data).encode())


def test_the_ledger_is_no_job_of_the_store(shelf: Shelf, tmp_path: Path) -> None:
    writer = JobWriter(job_location(str(tmp_path), "train"), "host-0")
    writer.write_job(Job("train", 1))
    writer.flush()
    shelf.put(a_job("steps", 0))  # its folder has the name of a table
    assert open_job(str(tmp_path)).name == "train", "the only job"
    assert shelf.missing(shelf.read().jobs) == ["train"]
    assert shelf.missing([a_job("train", 0)]) == []
    assert shelf.missing([a_job("train", 0, ended=False)]) == ["train"]


def test_no_job_is_named_like_the_ledger(tmp_path: Path) -> None:
    assert job_location(str(tmp_path), "_devices").name != "_devices"


def test_a_store_that_is_not_there_has_no_evidence(tmp_path: Path) -> None:
    assert Shelf(Location.parse(str(tmp_path / "nowhere"))).read().jobs == ()
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError):
        Shelf(Location.parse(str(tmp_path / "file"))).read()
