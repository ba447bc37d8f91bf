"""What dashboards see of a diagnosis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from stepscope.cli import main
from stepscope.cli.series import MAX_VERDICTS, Announcer, series
from stepscope.diagnose.finding import Diagnosis
from stepscope.store.remote_write import RemoteWriter, Sample
from tests.report.samples import SAMPLES


class Writer(RemoteWriter):
    """Keeps what it is offered, by name and the labels that tell series apart."""

    def __init__(self) -> None:
        super().__init__("http://localhost:1/write", {}, post=lambda _: None)
        self.offered: list[dict[str, float]] = []

    def offer(self, samples: Sequence[Sample]) -> None:
        self.offered.append({_said(one.name, one.labels): one.value for one in samples})

    def close(self) -> None:
        """Nothing waits."""


def _said(name: str, labels: Sequence[tuple[str, str]]) -> str:
    return " ".join([name, *(f"{k}={v}" for k, v in labels if k not in ("job", "watcher"))])


def said(diagnosis: Diagnosis) -> dict[str, float]:
    return {_said(*key): value for key, value in series(diagnosis, "host-0").items()}


def test_a_healthy_job() -> None:
    found = said(SAMPLES["healthy"]())
    assert found.pop("stepscope_state state=healthy") == 1
    assert found.pop("stepscope_verdicts") == 0
    assert set(found.values()) == {0} and len(found) == 6


def test_a_hang_names_rank_and_cause() -> None:
    hang = SAMPLES["hang"]()
    found = said(hang)
    assert found["stepscope_state state=hang"] == 1
    assert found["stepscope_verdicts"] == len(hang.verdicts)
    first = hang.verdicts[0]
    [name] = [one for one in found if one.startswith("stepscope_verdict_confidence")][:1]
    assert f"kind=hang cause={first.cause}" in name and found[name] == first.confidence


def test_verdicts_without_end_are_cut_off() -> None:
    hang = SAMPLES["hang"]()
    many = tuple(replace(hang.verdicts[0], ranks=(rank,)) for rank in range(50))
    found = said(replace(hang, verdicts=many))
    assert sum(one.startswith("stepscope_verdict_confidence") for one in found) == MAX_VERDICTS
    assert found["stepscope_verdicts"] == 50


def test_new_series_are_sent_at_once_and_old_ones_end() -> None:
    writer = Writer()
    announcer = Announcer(writer, "host-0")
    announcer.show(SAMPLES["hang"]())
    announcer.show(SAMPLES["hang"]())
    announcer.repeat()
    announcer.show(replace(SAMPLES["healthy"](), job_id=SAMPLES["hang"]().job_id))
    announcer.close()
    hang, again, healthy, end = writer.offered
    assert hang == again
    ended = {name for name, value in healthy.items() if math.isnan(value)}
    assert ended and all(name.startswith("stepscope_verdict_") for name in ended)
    assert all(map(math.isnan, end.values())) and end.keys() == healthy.keys() - ended


def test_remote_write_needs_follow(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "somewhere", "--remote-write", "http://x/write"]) == 2
    assert "needs --follow" in capsys.readouterr().err


def test_a_url_that_makes_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "somewhere", "-f", "--remote-write", "prometheus:9090"]) == 2
    assert "cannot send metrics to prometheus:9090" in capsys.readouterr().err
