"""`stepscope devices` as people meet it: table, evidence, and what it says if there is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.cli import evidence, main
from stepscope.cli.writing import write_window
from stepscope.devices import Shelf
from stepscope.devices.posterior import standings
from stepscope.devices.text import render
from stepscope.diagnose.run import diagnose
from stepscope.errors import StoreError
from stepscope.simulate import Scenario, parse_fault, simulate
from stepscope.store import Location, job_location
from tests.devices.jobs import CABLE, CPU, DAY_NS, GPU, HOST, NIC, OTHER, T0, a_job, blame

Capture = pytest.CaptureFixture[str]
SLOW = "rank 3 computes 1.9x slower than its peers in backward-compute from step 1100"
DATA = "data moves 3.8x slower through host-1/nic-0--leaf-0 than elsewhere, at rank 8"
JOBS = [
    a_job("llama-1", 0, blame(0.96, (GPU, 0.96), (HOST, 0.04), says=SLOW), healthy=(NIC, CABLE)),
    a_job("llama-2", 1, blame(0.97, (CABLE, 0.8), (NIC, 0.2), cause="network", says=DATA),
          healthy=(OTHER, CPU, GPU, HOST)),
    *(a_job(f"llama-{at}", at, blame(0.96, (GPU, 0.96), (HOST, 0.04), says=SLOW),
            healthy=(OTHER, CPU)) for at in (3, 4, 5)),
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for one in JOBS:
        Shelf(Location.parse(str(tmp_path))).put(one)
    return tmp_path


def test_the_table() -> None:
    found = standings(JOBS, T0 + 7 * DAY_NS)
    assert render(found, len(JOBS), T0 + 7 * DAY_NS, 100, 5) == (
        Path(__file__).parent / "devices.txt"
    ).read_text(encoding="utf-8")


def test_devices_names_what_to_drain(store: Path, capsys: Capture) -> None:
    assert main(["devices", str(store), "--at", "2024-10-11"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("drain 1 of 6 devices in 5 jobs: host-0/gpu-3\n")
    assert SLOW in " ".join(said.split())
    assert main(["devices", str(store)]) == 0, "long ago, so it counts no more"
    assert capsys.readouterr().out.startswith(
        "nothing to drain: 6 devices in 5 jobs; the newest evidence is of 2024-10-09 00:00:00 UTC, "
        "and counts little\n"
    )


def test_json_holds_everything(store: Path, capsys: Capture) -> None:
    assert main(["devices", str(store), "--json", "--at", "2024-10-11"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["jobs"], len(data["devices"]), data["problems"]) == (1, 5, 6, [])
    worst = data["devices"][0]
    assert (worst["name"], worst["id"], worst["host"]) == ("host-0/gpu-3", "GPU-3f", "host-0")
    assert (worst["jobs_bad"], worst["jobs_used"], worst["advice"]) == (4, 5, "drain")
    assert worst["evidence"][0]["summary"] == SLOW
    assert main(["devices", str(store), "--json", "--limit", "2", "--at", "2024-10-11"]) == 1
    assert len(json.loads(capsys.readouterr().out)["devices"]) == 2


def test_only_some_time_counts_if_asked(store: Path, capsys: Capture) -> None:
    assert main(["devices", str(store), "--since", "2024-10-06", "--at", "2024-10-08"]) == 0
    assert " in 2 jobs" in capsys.readouterr().out
    assert main(["devices", str(store), "--since", "1h"]) == 2
    assert "the last one did at 2024-10-09 00:00:00 UTC" in capsys.readouterr().err
    assert main(["devices", str(store), "--since", "recently"]) == 2
    assert "takes an age, as 12h or 7d, or a date" in capsys.readouterr().err


def test_a_damaged_object_is_reported(store: Path, capsys: Capture) -> None:
    (store / "_devices/llama-1/host-0.json").write_text("{")
    assert main(["devices", str(store), "--at", "2024-10-11"]) == 1
    said = capsys.readouterr()
    assert " in 4 jobs" in said.out
    assert "llama-1/host-0.json: it is no evidence of a job" in said.err


def test_a_topology_is_for_new_diagnoses(store: Path, capsys: Capture) -> None:
    assert main(["devices", str(store), "--topology", "x"]) == 2
    assert "--topology needs --update" in capsys.readouterr().err
    assert main(["devices", str(store), "--update", "--topology", str(store / "none")]) == 2
    assert "cannot read the topology" in capsys.readouterr().err


def a_simulated_job(store: Path, name: str) -> None:
    scenario = Scenario(name, 8, 30, faults=(parse_fault("gpu_slow:rank=3,factor=1.5"),))
    write_window(simulate(scenario).window, job_location(str(store), name), "simulator")


def test_jobs_without_evidence_are_diagnosed_on_request(tmp_path: Path, capsys: Capture) -> None:
    for name in ("one", "two", "three"):
        a_simulated_job(tmp_path, name)
    assert main(["devices", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "none of its 3 jobs has any; --update diagnoses them" in said
    assert main(["devices", str(tmp_path), "--update", "--at", "2025-12-18"]) == 1
    assert capsys.readouterr().out.startswith("drain 1 of ")
    assert len(list((tmp_path / "_devices").glob("*/*.json"))) == 3
    assert main(["devices", str(tmp_path), "--at", "2025-12-18"]) == 1, "it was kept"


def test_a_store_that_cannot_be_written_is_read(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_simulated_job(tmp_path, "one")

    def refuse(*_: object) -> None:
        raise StoreError("cannot write it: permission denied")

    monkeypatch.setattr(Shelf, "put", refuse)
    assert main(["devices", str(tmp_path), "--update", "--at", "2025-12-18"]) == 0
    said = capsys.readouterr()
    assert "in 1 job; watch 1" in said.out
    assert said.err.endswith("the evidence counts now, but is not kept: cannot write it: "
                             "permission denied\n")  # fmt: skip
    window = simulate(Scenario("job", 2, 12)).window
    trouble = evidence.remember(str(tmp_path), "job", window, diagnose(window))
    assert trouble == "not added to the device ledger: cannot write it: permission denied"


def test_a_job_that_ends_leaves_its_evidence(tmp_path: Path) -> None:
    window = simulate(Scenario("job", 2, 12)).window
    assert evidence.remember(str(tmp_path), "my job", window, diagnose(window)) is None
    [one] = Shelf(Location.parse(str(tmp_path))).read().jobs
    assert one.job.startswith("my_job-")
    nothing = replace(diagnose(window), ranks=0)
    assert evidence.remember(str(tmp_path), "empty", window, nothing) is None
    assert len(Shelf(Location.parse(str(tmp_path))).read().jobs) == 1


def test_what_is_no_store(tmp_path: Path, capsys: Capture) -> None:
    assert main(["devices", str(tmp_path / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert main(["devices", str(tmp_path)]) == 2
    assert f"no job in {tmp_path}; record one with `stepscope run" in capsys.readouterr().err
    a_simulated_job(tmp_path, "one")
    assert main(["devices", str(tmp_path / "one")]) == 2
    assert "is a job; name the store that contains it" in capsys.readouterr().err
