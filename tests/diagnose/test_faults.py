"""An error in one method hides nothing that the others find."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stepscope.diagnose.detect.links.network import SlowLinks
from stepscope.diagnose.finding import SlowLink
from stepscope.diagnose.method import SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.report.json import to_json
from tests.diagnose.jobs import Fault, a_job


@pytest.fixture(autouse=True)
def links_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def detect(self: SlowLinks, job: Observed, so_far: SoFar) -> Iterator[SlowLink]:
        raise ValueError("no such place")

    monkeypatch.setattr(SlowLinks, "detect", detect)


def test_the_slow_rank_is_named_all_the_same() -> None:
    found = diagnose(a_job(faults=[Fault((2,), "forward-compute", 40, times=1.5)]))
    assert [one.ranks for one in found.verdicts] == [(2,)]
    assert [str(one) for one in found.faults] == ["no such place"]
    says = {one["method"]: one["why"] for one in to_json(found)["skipped"]}
    assert says["slow-link"] == "internal error: ValueError: no such place"


def test_a_job_without_findings_is_unknown() -> None:
    found = diagnose(a_job())
    assert found.state == "unknown"
    assert found.unaccounted == "slow-link ended by an internal error"
