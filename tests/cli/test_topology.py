"""`stepscope diagnose --topology FILE`: switches that the job does not know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.cli.sources import Recording
from stepscope.cli.topology import Placed
from stepscope.diagnose.run import diagnose
from stepscope.simulate import simulate
from stepscope.window import Window
from tests.simulate.jobs import a_scenario

from .recordings import write_traces


@pytest.fixture(scope="module")
def cable() -> Window:
    """A job of 64 ranks on eight hosts with one slow cable, that knows no switches."""
    window = simulate(a_scenario("link_slow:rank=37,factor=6,from=20", ranks=64, steps=40)).window
    return replace(window, job=replace(window.job, fabric=None))


def found(window: Window) -> dict[str, str]:
    (verdict,) = diagnose(window).verdicts
    return {device.type: device.name for device in verdict.devices}


def test_the_cable_to_a_switch_is_named_once_the_switch_is_known(
    cable: Window, tmp_path: Path
) -> None:
    assert "link" not in found(cable)
    path = tmp_path / "topology.conf"
    path.write_text("SwitchName=leaf-7 Nodes=host-[000-007]\n")
    placed = Placed(Recording(cable), path)
    assert found(placed.read())["link"] == "host-004/nic-5--leaf-7"
    assert not placed.problems


def test_hosts_that_the_file_does_not_have_are_a_problem(cable: Window, tmp_path: Path) -> None:
    path = tmp_path / "topology.conf"
    path.write_text("SwitchName=leaf-7 Nodes=host-[000-006]\n")
    placed = Placed(Recording(cable, ["1 file was left out"]), path)
    placed.refresh()
    assert placed.problems == [
        "1 file was left out", f"{path}: host-007: not connected to any switch of the file"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file or directory"),
        ("SwitchName=a Nodes=n[1-", "line 1: unmatched '['"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, why: str
) -> None:
    path = tmp_path / "topology.conf"
    if text is not None:
        path.write_text(text)
    traces = write_traces(tmp_path / "traces")
    assert main(["diagnose", str(traces), "--topology", str(path)]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"stepscope: cannot read the topology {path}: ")
    assert why in shown.err and shown.err.count("\n") == 1
