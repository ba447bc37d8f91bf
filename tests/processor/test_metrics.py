"""A bounded number of series, sent every fifteen seconds if a URL is set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from stepscope.processor.reporting import metrics
from stepscope.processor.reporting.metrics import HostMetrics
from stepscope.processor.reporting.reporter import EVERY_SECONDS, Reporting
from stepscope.store.remote_write import RemoteWriter, Sample

MS = 1_000_000
URL = "http://localhost:1/write"


@pytest.fixture
def host() -> HostMetrics:
    return HostMetrics("host-0")


def seen(samples: Sequence[Sample]) -> dict[str, float]:
    """By name and labels, but for job and host."""
    found = {}
    for one in samples:
        labels = [f"{k}={v}" for k, v in one.labels if k not in ("job", "host")]
        found[" ".join([one.name.removeprefix("stepscope_"), *labels])] = round(one.value, 9)
    return found


def steps(*durations_ms: int, rank: int = 0) -> dict[str, Any]:
    count = len(durations_ms)
    return {
        "rank": [rank] * count,
        "step": list(range(count)),
        "start_ns": [0] * count,
        "duration_ns": [ms * MS for ms in durations_ms],
    }


def phases(*names: str | None, rank: int = 0, wait_ms: int = 1) -> dict[str, Any]:
    count = len(names)
    return {
        "rank": np.full(count, rank, np.int32),
        "phase": list(names),
        "duration_ns": np.full(count, 10 * MS),
        "wait_ns": np.full(count, wait_ms * MS),
    }


def kernels(*kernels: tuple[str, int, int], rank: int = 0, window: int = 0) -> dict[str, Any]:
    """Name, count and p50 in ms; a second stream runs each once more."""
    rows = [one for one in kernels for _ in range(2)]
    return {
        "rank": [rank] * len(rows),
        "window_start_ns": [window] * len(rows),
        "kernel": [name for name, _, _ in rows],
        "count": [count for _, count, _ in rows],
        "p50_ns": [ms * MS for _, _, ms in rows],
        "p99_ns": [2 * ms * MS for _, _, ms in rows],
    }


def test_steps(host: HostMetrics) -> None:
    host.note("job-1", "steps", steps(100, 300, 200, rank=3))
    assert seen(host.samples(7)) == {
        "step rank=3": 2,
        "steps_total rank=3": 3,
        "step_seconds_total rank=3": 0.6,
        "step_longest_seconds rank=3": 0.3,
    }
    [first, *_] = host.samples(7)
    assert dict(first.labels) == {"job": "job-1", "host": "host-0", "rank": "3"}
    assert first.time_ms == 7

    host.note("job-1", "steps", steps(150, rank=3))
    later = seen(host.samples(8))
    assert later["steps_total rank=3"] == 4 and later["step_longest_seconds rank=3"] == 0.15


def test_phases_with_what_they_waited(host: HostMetrics) -> None:
    host.note("job-1", "phases", phases("forward", "forward", "mine", None))
    assert seen(host.samples(0)) == {
        "phases_total phase=forward rank=0": 2,
        "phase_seconds_total phase=forward rank=0": 0.02,
        "phase_wait_seconds_total phase=forward rank=0": 0.002,
        "phases_total phase=mine rank=0": 1,
        "phase_seconds_total phase=mine rank=0": 0.01,
        "phase_wait_seconds_total phase=mine rank=0": 0.001,
        "phases_total phase=other rank=0": 1,
        "phase_seconds_total phase=other rank=0": 0.01,
        "phase_wait_seconds_total phase=other rank=0": 0.001,
    }


def test_the_kernels_that_take_longest(host: HostMetrics) -> None:
    many = [(f"kernel-{number:02}", 10, number) for number in range(1, 13)]
    host.note("job-1", "kernel_summaries", kernels(*many))
    found = seen(host.samples(0))
    assert found["kernel_seconds_total kernel=kernel-12 rank=0"] == 2 * 10 * 0.012
    assert found["kernel_launches_total kernel=kernel-12 rank=0"] == 20
    assert found["kernel_p99_seconds kernel=kernel-12 rank=0"] == 0.024
    assert found["kernel_seconds_total kernel=other rank=0"] == pytest.approx(2 * 10 * 0.003)
    assert sum(name.startswith("kernel_p99") for name in found) == metrics.TOP_KERNELS


def test_names_that_never_end_become_others(host: HostMetrics) -> None:
    """A phase per step, kernels compiled anew, and names as long as templates make them."""
    for number in range(500):
        host.note("job-1", "phases", phases(f"step-{number}"))
        host.note("job-1", "kernel_summaries", kernels((f"{number}" * 99, 1, 1), window=number))
    names = list(seen(host.samples(0)))
    assert len({one for one in names if "phase=" in one}) == 3 * (metrics.MOST_PHASES + 1)
    assert len({one for one in names if one.startswith("kernel_launches")}) == (
        metrics.MOST_KERNELS + 1
    )
    assert max(map(len, names)) < 200
    total = sum(v for k, v in seen(host.samples(0)).items() if k.startswith("phases_total"))
    assert total == 500


def test_more_ranks_than_a_host_can_have(
    host: HostMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MOST_SERIES", 30)
    for rank in range(100):
        host.note("job-1", "steps", steps(1, rank=rank))
    found = seen(host.samples(0))
    assert len(found) <= 31 and found["series_left_out_total"] > 0


def test_losses_and_what_we_cost_ourselves(host: HostMetrics) -> None:
    host.note("job-1", "losses", {"table": ["kernels", "kernels"], "rows": [5, 6]})
    rows = {"rank": [-1, 4, -1], "metric": ["stepscope_processor_cpu", "steps_blocked", "load1"]}
    host.note("job-1", "hardware", {**rows, "value": [0.02, 1.0, 9.0]})
    host.note("job-1", "stacks", {})
    assert seen(host.samples(0)) == {
        "lost_rows_total table=kernels": 11,
        "processor_cpu_cores": 0.02,
        "steps_blocked rank=4": 1,
    }


def test_a_job_that_ended_has_no_series(host: HostMetrics) -> None:
    host.note("job-1", "steps", steps(1))
    host.note("job-2", "steps", steps(1))
    host.forget("job-1")
    assert {dict(one.labels)["job"] for one in host.samples(0)} == {"job-2"}


class Writer(RemoteWriter):
    """Keeps what it is offered."""

    def __init__(self) -> None:
        super().__init__(URL, {}, post=lambda _: None)
        self.offered: list[dict[str, float]] = []

    def offer(self, samples: Sequence[Sample]) -> None:
        self.offered.append(seen(samples))

    def close(self) -> None:
        """Nothing waits."""


def test_every_fifteen_seconds_and_at_the_end() -> None:
    now, writer = [1000.0], Writer()
    reporting = Reporting("host-0", None, clock=lambda: now[0], writer=writer)
    reporting.note("job-1", "steps", steps(1))
    for _ in range(35):
        reporting.turn()
        now[0] += 1
    assert now[0] == 1035.0 and len(writer.offered) == 2
    assert writer.offered[0]["remote_write_dropped_samples_total"] == 0
    now[0] -= 5000  # somebody sets the clock
    reporting.turn()
    reporting.close()
    assert len(writer.offered) == 4 and EVERY_SECONDS == 15


def test_without_a_server_nothing_is_kept() -> None:
    reporting = Reporting("host-0", None)
    reporting.note("job-1", "steps", steps(1))
    reporting.turn()
    reporting.close()
    assert reporting._metrics.samples(0) == []
