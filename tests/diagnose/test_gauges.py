"""GPU samples of a host belong to the ranks that compute on these GPUs."""

from __future__ import annotations

from stepscope.diagnose.network.devices import Devices
from stepscope.diagnose.prepare.gauges import by_rank
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job
from stepscope.window import Table, Window

from .jobs import MS, START, a_job, a_table, both, put
from .test_causes import CULPRIT, SLOW, on_device

Sample = tuple[int, str, str, int, float]


def hardware(*rows: Sample) -> Table:
    return a_table("rank host metric ts_ns value", list(rows))


def a_window(gpus: int, *rows: Sample) -> Window:
    """Ranks 4 and 5 on host a, which has `gpus` GPUs."""
    hosts = (Host("a", (4, 5), (), tuple(f"gpu-{at}" for at in range(gpus))),)
    return Window(Job("job", 8, hosts), {"hardware": hardware(*rows)})


def metrics_of(window: Window) -> list[tuple[int, str | None]]:
    table = by_rank(window).tables["hardware"]
    names = table.strings("metric")
    return [(int(rank), names[at]) for at, rank in enumerate(table.ints("rank"))]


CLOCKS = ((-1, "a", "sm_clock_mhz.gpu1", 5, 1980.0), (-1, "a", "sm_clock_mhz.gpu0", 5, 990.0))


def test_as_many_gpus_as_ranks_are_assigned_in_order() -> None:
    window = a_window(2, *CLOCKS, (4, "a", "cpu_util", 5, 1.0))
    assert metrics_of(window) == [(5, "sm_clock_mhz"), (4, "sm_clock_mhz"), (4, "cpu_util")]


def test_a_recorded_gpu_index_counts() -> None:
    seen = ((4, "a", "gpu_index", 5, 1.0), (5, "a", "gpu_index", 5, 0.0))
    assert metrics_of(a_window(2, *CLOCKS, *seen))[:2] == [(4, "sm_clock_mhz"), (5, "sm_clock_mhz")]


def test_as_many_sampled_gpus_as_ranks_are_assigned_in_order() -> None:
    """Of the eight GPUs of the host a container sees two."""
    assert metrics_of(a_window(8, *CLOCKS)) == [(5, "sm_clock_mhz"), (4, "sm_clock_mhz")]


def test_more_gpus_than_ranks_are_not_assigned() -> None:
    third = (-1, "a", "sm_clock_mhz.gpu2", 5, 1980.0)
    assert metrics_of(a_window(4, *CLOCKS, third)) == [
        (-1, "sm_clock_mhz.gpu1"),
        (-1, "sm_clock_mhz.gpu0"),
        (-1, "sm_clock_mhz.gpu2"),
    ]


def test_a_device_has_the_number_of_the_recorded_gpu_index() -> None:
    devices = Devices(a_window(8, (4, "a", "gpu_index", 5, 6.0)))
    assert (devices.gpu(4), devices.pcie(4)) == ("a/gpu-6", "a/pcie-6")


def as_collected(job: Window, metric: str, culprit: float, usual: float) -> Window:
    """A counter of four GPUs as the processor of their host writes it."""
    times = range(START, int(job.tables["hardware"].ints("ts_ns").max()), 1000 * MS)
    rows = [(-1, "host-000", f"{metric}.gpu{at}", time, culprit if at == CULPRIT else usual)
            for time in times for at in range(4)]  # fmt: skip
    rows += [(rank, "host-000", "gpu_index", START, float(rank)) for rank in range(4)]
    return put(job, hardware=both(job.tables["hardware"], hardware(*rows)))


def slow_device() -> Window:
    return on_device(a_job(faults=[SLOW]))


def test_the_clock_that_a_processor_samples_is_used() -> None:
    (verdict,) = diagnose(as_collected(slow_device(), "sm_clock_mhz", 990.0, 1980.0)).verdicts
    assert (verdict.cause, verdict.ranks) == ("compute", (CULPRIT,))
    assert "gpu-clock" in {one.method for one in verdict.evidence}


def test_other_processes_on_a_device_compete_for_it() -> None:
    (verdict,) = diagnose(as_collected(slow_device(), "gpu_strangers", 1.0, 0.0)).verdicts
    assert (verdict.cause, verdict.ranks) == ("contention", (CULPRIT,))
    assert [one.type for one in verdict.devices] == ["gpu"]
    assert "compute-apps" in verdict.advice


def test_a_link_that_lost_lanes_without_recorded_copies() -> None:
    (verdict,) = diagnose(as_collected(slow_device(), "pcie_link_gb_per_s", 3.9, 63.0)).verdicts
    assert (verdict.cause, verdict.ranks) == ("memory_copy", (CULPRIT,))
    assert [one.type for one in verdict.devices] == ["pcie"]
    assert "3.9 GB/s" in "".join(one.detail for one in verdict.evidence)


def test_links_that_are_alike_explain_nothing() -> None:
    (verdict,) = diagnose(as_collected(slow_device(), "pcie_link_gb_per_s", 31.5, 31.5)).verdicts
    assert verdict.cause == "compute"


def test_a_monitor_on_each_device_is_no_reason() -> None:
    (verdict,) = diagnose(as_collected(slow_device(), "gpu_strangers", 1.0, 1.0)).verdicts
    assert verdict.cause == "compute"
