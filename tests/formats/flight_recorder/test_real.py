"""Flight recorders of real gloo jobs, each with one fault: read, diagnosed, reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose
from stepscope.formats.flight_recorder import read, recognise

from .gloo_scenes import CULPRIT, WORLD, world_of

pytestmark = [
    pytest.mark.real, pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
]  # fmt: skip

REPOSITORY = Path(__file__).parents[3]
ALL_WAIT = ("sleeps", "grid", "other_operator", "other_size", "skips", "pair_order")
"""Scenes in which every other rank waits for the culprit; in others some have finished."""
FORMS = pytest.mark.parametrize("form", ["pickle", "json"])


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    subprocess.run(
        [sys.executable, "-m", "tests.formats.flight_recorder.gloo_scenes", str(folder)],
        cwd=REPOSITORY, check=True, timeout=90,
        env={**os.environ, "TORCH_FR_BUFFER_SIZE": "500", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return folder


def diagnosis_of(folder: Path) -> Diagnosis:
    assert recognise(folder)
    dumps = read(folder)
    assert not dumps.problems
    assert dumps.window.job.world_size == world_of(folder.parent.name)
    return diagnose(dumps.window)


@FORMS
def test_nothing_is_wrong_with_a_job_that_works(scenes: Path, form: str) -> None:
    assert diagnosis_of(scenes / "healthy" / form).verdicts == ()


@FORMS
def test_nobody_is_accused_in_a_job_that_goes_on(scenes: Path, form: str) -> None:
    """Of dumps that were not taken at once, one may lack an operator that the others have left."""
    verdicts = diagnosis_of(scenes / "live" / form).verdicts
    assert [one for one in verdicts if one.confidence >= 0.5] == []


@FORMS
@pytest.mark.parametrize(
    ("scene", "kind"),
    [
        ("sleeps", "hang"),
        ("grid", "hang"),
        ("other_operator", "mismatch"),
        ("other_size", "mismatch"),
        ("skips", "hang"),
        ("once_more", "hang"),
        ("pair_skips", "hang"),
        ("pair_once_more", "hang"),
        ("pair_order", "mismatch"),
        ("pair_other_operator", "mismatch"),
        ("wrapped", "hang"),
        ("blocks", "hang"),
        ("wrong_peer", "hang"),
    ],
)
def test_the_faulty_rank_is_named(scenes: Path, scene: str, kind: str, form: str) -> None:
    diagnosis = diagnosis_of(scenes / scene / form)
    (verdict,) = diagnosis.verdicts
    assert (verdict.kind, verdict.ranks) == (kind, (CULPRIT,))
    assert scene not in ALL_WAIT or verdict.victims == WORLD - 1
    assert diagnosis.state == "hang"
    if form == "json":
        assert verdict.hosts == ("host-17",)  # from the name of the file; JSON has no stacks
    else:
        assert "gloo_scenes.py" in (verdict.function or "")


@FORMS
def test_the_command_says_who_hangs_and_where(
    scenes: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(scenes / "sleeps" / form), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    (verdict,) = found["verdicts"]
    assert (found["state"], found["ranks"], found["steps"]) == ("hang", WORLD, None)
    assert (verdict["kind"], verdict["ranks"], verdict["victims"]) == ("hang", [CULPRIT], WORLD - 1)
    assert (verdict["function"] is None) == (form == "json")
    assert main(["diagnose", str(scenes / "sleeps" / form)]) == 1
    said = capsys.readouterr().out
    assert f"rank {CULPRIT}" in said
    assert ("gloo_scenes.py" in said) == (form == "pickle"), "JSON has no stacks"


@FORMS
def test_the_command_finds_nothing_in_a_job_that_works(
    scenes: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(scenes / "healthy" / form), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdicts"] == []


@FORMS
def test_gloo_does_not_record_sends(scenes: Path, form: str) -> None:
    """So the rank that waits for one looks as absent as the one that does not send."""
    (verdict,) = diagnosis_of(scenes / "never_sends" / form).verdicts
    assert (verdict.kind, verdict.ranks) == ("hang", (CULPRIT, CULPRIT + 1))


@FORMS
def test_a_rank_without_a_dump(scenes: Path, form: str, tmp_path: Path) -> None:
    for path in (scenes / "sleeps" / form).iterdir():
        if str(CULPRIT) not in path.name.replace("17", ""):
            (tmp_path / path.name).write_bytes(path.read_bytes())
            os.utime(tmp_path / path.name, (path.stat().st_atime, path.stat().st_mtime))
    (verdict,) = diagnose(read(tmp_path).window).verdicts
    assert (verdict.ranks, verdict.cause) == ((CULPRIT,), "unknown")
