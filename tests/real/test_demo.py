"""`make demo`'s job: four ranks, one of which burns CPU in its backward from the middle on."""

from __future__ import annotations

import pytest

from .conftest import HERE, Jobs, diagnose

pytestmark = [pytest.mark.real, pytest.mark.alone]

DEMO = HERE.parent.parent / "demo" / "train.py"


def test_the_demo_names_the_slow_rank_and_no_other(jobs: Jobs) -> None:
    launch = ["torchrun", "--standalone", "--nproc-per-node", "4", str(DEMO)]
    page = jobs.root / "demo.html"
    command = jobs.command("demo", *launch, "--slow-rank", "2", "--steps", "200")
    command[2:2] = ["--html", str(page)]
    finished = jobs.finish("demo", jobs.start_command(command))
    assert finished.status == 0, finished.stderr
    assert "done: 200 steps on 4 ranks" in finished.stdout, "the script's own output"
    assert "internal fault" not in finished.stderr

    status, diagnosis = diagnose(finished.folder)
    assert status == 1
    (verdict,) = diagnosis["verdicts"]
    assert verdict["ranks"] == [2]
    assert verdict["phase"] == "backward-compute"
    assert verdict["cause"] in ("compute", "host")
    assert "burn_cpu" in verdict["function"]
    assert verdict["victims"] == 3
    assert verdict["lost_fraction"] > 0.4
    assert 95 <= verdict["steps"][0] <= 105, "since when"
    assert diagnosis["state"] == "regression"

    while_it_ran, _, _ = finished.stderr.partition("job demo")
    # it computes so many times slower; on a fast machine it takes so many milliseconds longer
    assert "stepscope: rank 2 " in while_it_ran, "a verdict as soon as there is one"
    assert "rank 2" in page.read_text(encoding="utf-8")
