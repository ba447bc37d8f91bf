"""A slow device between ranks is found by who suffers from it, and by who does not."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.detect.links.network import without_strays
from stepscope.diagnose.detect.links.slow_link import slow_links
from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.network.rates import measure_rates
from stepscope.diagnose.numeric.chance import Runs, log_tail
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job
from stepscope.window import NULL, Strings, Table, Window

from .fabric import RANKS, Slow, a_wired_job, on_host, through
from .jobs import MS, START, a_table, put, without


def the_verdict(window: Window) -> Verdict:
    (verdict,) = diagnose(window).verdicts
    assert verdict.cause == "network"
    return verdict


def methods(window: Window) -> set[str]:
    return {seen.method for verdict in diagnose(window).verdicts for seen in verdict.evidence}


def names(verdict: Verdict) -> list[str]:
    return [device.name for device in verdict.devices]


def test_a_slow_adapter_is_what_all_slow_pairs_and_groups_have_in_common() -> None:
    found = the_verdict(a_wired_job(through(5)))
    assert found.ranks == (5,)
    assert found.hosts == ("h2",)
    assert names(found) == ["h2/nic-1--leaf-1", "h2/nic-1", "h2/pcie-1"]
    assert sum(device.probability for device in found.devices[:3]) > 0.95
    assert found.slowdown == pytest.approx(4.0, rel=0.05)
    assert found.steps == (30, 59)
    assert found.lost_fraction == pytest.approx(60 / 460, rel=0.05)


def test_a_slow_leaf_is_no_slow_adapter_of_anybody() -> None:
    found = the_verdict(a_wired_job(through(4, 5, 6, 7)))
    assert names(found)[0] == "leaf-1"
    assert found.ranks == (4, 5, 6, 7)


def test_no_adapter_is_named_where_all_are_slow() -> None:
    found = the_verdict(a_wired_job(through(*range(RANKS), times=2.0)))
    assert (found.ranks, found.devices) == ((), ())
    assert "between all hosts" in found.summary


@pytest.mark.parametrize(
    ("rank", "metric"), [(5, "nic_rx_errors"), (-1, "nic_errors.nic-1")], ids=["rank", "adapter"]
)
def test_an_error_counter_distinguishes_adapter_from_cable(rank: int, metric: str) -> None:
    """Counted for a rank, or by a processor for an adapter of its host; now and then earlier too,
    with no rows where nothing is counted."""
    window = a_wired_job(through(5))
    steps = window.tables["steps"]
    noisy = (steps.ints("step") >= 31) | np.isin(steps.ints("step"), (8, 19))
    late = steps.take((steps.ints("rank") == 5) & noisy)
    errors = Table({"rank": np.full(len(late), rank), "host": Strings.of(["h2"] * len(late)),
                    "metric": Strings.of([metric] * len(late)),
                    "ts_ns": late.ints("start_ns"), "value": np.full(len(late), 40.0)})  # fmt: skip
    assert names(the_verdict(window))[0] == "h2/nic-1--leaf-1"
    assert names(the_verdict(put(window, hardware=errors)))[0] == "h2/nic-1"
    assert not diagnose(put(a_wired_job(), hardware=errors)).verdicts


def test_an_adapters_link_with_half_its_lanes_is_distinguished_from_its_cable() -> None:
    window = a_wired_job(through(5))
    begins = np.unique(window.tables["steps"].ints("start_ns"))
    rows = [(host, nic, at, 31.5 if (host, nic) == (2, 1) and at >= begins[30] else 63.0)
            for host in range(8) for nic in range(2) for at in begins.tolist()]  # fmt: skip
    links = Table({
        "rank": np.full(len(rows), -1), "host": Strings.of([f"h{host}" for host, *_ in rows]),
        "metric": Strings.of([f"nic_pcie_gb_per_s.nic-{nic}" for _, nic, *_ in rows]),
        "ts_ns": np.array([at for *_, at, _ in rows]), "value": np.array([row[-1] for row in rows]),
    })  # fmt: skip
    assert names(the_verdict(put(window, hardware=links)))[0] == "h2/pcie-1"
    assert not diagnose(put(a_wired_job(), hardware=links)).verdicts


def test_where_all_pass_a_slow_link_its_speed_shows_how_fast_data_could_move() -> None:
    """A single group, equally slow in all steps: nothing else shows that it could be faster."""
    window = a_wired_job()
    comm = window.tables["comm_ops"]
    window = put(window, comm_ops=comm.take(comm.strings("group").equals("dp-1")))
    assert not diagnose(window).verdicts
    begins = np.unique(window.tables["steps"].ints("start_ns"))
    rows = [(host, nic, at, 10.0 if (host, nic) == (2, 1) else 50.0)
            for host in range(8) for nic in range(2) for at in begins.tolist()]  # fmt: skip
    links = Table({
        "rank": np.full(len(rows), -1), "host": Strings.of([f"h{host}" for host, *_ in rows]),
        "metric": Strings.of([f"nic_link_gb_per_s.nic-{nic}" for _, nic, *_ in rows]),
        "ts_ns": np.array([at for *_, at, _ in rows]), "value": np.array([row[-1] for row in rows]),
    })  # fmt: skip
    found = the_verdict(put(window, hardware=links))
    assert (found.ranks, names(found)[0]) == ((5,), "h2/nic-1")
    assert found.lost_fraction == pytest.approx(0.8 * 20 / 400, rel=0.1)


def test_small_operators_count_where_they_take_long() -> None:
    window = a_wired_job(through(5))
    comm = window.tables["comm_ops"]
    small = comm.with_column("bytes", np.full(len(comm), 1 << 16))
    assert the_verdict(put(window, comm_ops=small)).ranks == (5,)


def test_traffic_within_a_host_goes_over_what_counters_show() -> None:
    window = a_wired_job(on_host(3))
    found = the_verdict(window)
    assert (names(found), found.group) == (["h3/gpu-0--h3/gpu-1"], "tp-3")
    assert "the interconnect inside h3" in found.evidence[0].detail
    counted = Table({"rank": np.zeros(1, np.int64), "host": Strings.of(["h0"]),
                     "metric": Strings.of(["nvlink_tx_bytes_per_s"]),
                     "ts_ns": window.tables["steps"].ints("start_ns")[:1],
                     "value": np.ones(1)})  # fmt: skip
    found = the_verdict(put(window, hardware=counted))
    assert (names(found), found.ranks, found.group) == (["h3/nvlink"], (), "tp-3")


def test_without_a_fabric_no_switch_is_named() -> None:
    found = the_verdict(a_wired_job(through(5), fabric=False))
    assert found.ranks == (5,)
    assert names(found)[:2] == ["h2/nic-1", "h2/pcie-1"]


def test_now_and_then_is_often_enough() -> None:
    found = the_verdict(a_wired_job(through(5, every=6)))
    assert found.ranks == (5,)
    assert found.evidence[0].values["slow_steps"] == 5


def test_what_was_slow_from_the_first_step_on_is_compared_with_its_equals() -> None:
    found = the_verdict(a_wired_job(through(5, since=0)))
    assert found.ranks == (5,)


def test_a_stage_in_the_middle_is_behind_most_pairs_of_a_pipeline() -> None:
    """Slow from the first step on: two of three pairs of each pipeline, and none is its equal."""
    found = the_verdict(a_wired_job(through(4, 5, 6, 7, since=0)))
    assert (names(found)[0], found.ranks) == ("leaf-1", (4, 5, 6, 7))


@pytest.mark.parametrize(
    ("ends", "name"),
    [((1, 5), "h0/nic-1--h2/nic-1"), ((6, 7), "h3/gpu-0--h3/gpu-1")],
    ids=["between hosts", "within a host"],
)
def test_a_slow_link_is_its_two_ends(ends: tuple[int, int], name: str) -> None:
    def slow(members: tuple[int, ...], step: int) -> float:
        return 4.0 if set(members) == set(ends) else 1.0

    found = the_verdict(a_wired_job(slow))
    assert (found.ranks, names(found)[0], found.devices[0].type) == (ends, name, "link")
    assert f"between ranks {ends[0]} and {ends[1]}" in found.summary


def test_a_link_that_only_two_ranks_use_shows_in_few_steps() -> None:
    def slow(members: tuple[int, ...], step: int) -> float:
        return 4.0 if set(members) == {1, 5} else 1.0

    found = the_verdict(a_wired_job(slow, steps=12, fabric=False))
    assert (found.ranks, names(found)[0]) == ((1, 5), "h0/nic-1--h2/nic-1")


def test_hosts_that_are_farther_from_each_other_by_design_are_no_fault() -> None:
    def far(members: tuple[int, ...], step: int) -> float:
        return 3.0 if len({rank // (RANKS // 2) for rank in members}) > 1 else 1.0

    assert not diagnose(a_wired_job(far, fabric=False)).verdicts


def test_transfers_that_go_on_at_once_cost_their_time_once() -> None:
    """Both directions of two pairs, and a group: five transfers of 80 ms, in steps of 460 ms."""
    found = the_verdict(a_wired_job(through(5, since=0)))
    assert found.lost_fraction == pytest.approx(60 / 460, rel=0.2)


def test_of_two_equals_one_must_be_twice_as_slow() -> None:
    assert the_verdict(a_wired_job(on_host(3, since=0))).group == "tp-3"
    assert not diagnose(a_wired_job(on_host(3, times=1.8, since=0))).verdicts


def test_a_group_that_was_never_fast_and_has_no_equal_is_no_alibi() -> None:
    """Rank 1's own group is slow as well, with no evidence; that of rank 5 is not tested."""
    window = a_wired_job(through(1, since=0))
    comm = window.tables["comm_ops"]
    within = comm.strings("group").equals("dp-0")
    first = (
        (comm.ints("rank") < 8)
        & (comm.ints("peer") < 8)
        & comm.strings("op").equals("Send", "Recv")
    )
    window = put(window, comm_ops=comm.take(within | first))
    (found,) = slow_links(Observed(window), {6: (0, 60)})
    assert (found.place.members, found.ranks) == ((1, 5), ())


def test_two_slow_adapters_are_two_verdicts() -> None:
    def both(members: tuple[int, ...], step: int) -> float:
        return max(through(5)(members, step), through(10)(members, step))

    found = diagnose(a_wired_job(both)).verdicts
    assert sorted(one.ranks for one in found) == [(5,), (10,)]


def test_one_episode_of_a_few_steps_accuses_no_device() -> None:
    def once(members: tuple[int, ...], step: int) -> float:
        return through(5)(members, step) if step < 34 else 1.0

    assert not diagnose(a_wired_job(once)).verdicts


def in_step(step: int, *ranks: int, times: float) -> Slow:
    def slow(members: tuple[int, ...], now: int) -> float:
        return through(*ranks, times=times)(members, now) if now == step else 1.0

    return slow


def test_one_step_that_matters_by_itself_is_enough() -> None:
    job = diagnose(a_wired_job(in_step(34, 5, times=30.0)))
    (found,) = job.verdicts
    assert (job.state, found.ranks, found.steps) == ("jitter", (5,), (34, 34))
    assert "in one step from step 34" in found.summary
    assert found.lost_fraction == pytest.approx(580 / (54 * 400 + 980), rel=0.05)
    assert found.lost_of == (5, 59)


def test_one_slow_step_accuses_no_device_where_others_have_them_too() -> None:
    def both(members: tuple[int, ...], step: int) -> float:
        other = in_step(45, 10, times=12.0)(members, step)
        return max(in_step(34, 5, times=30.0)(members, step), other)

    assert not diagnose(a_wired_job(both)).verdicts


def test_waiting_for_a_late_member_is_no_slow_network() -> None:
    causes = {one.cause for one in diagnose(a_wired_job(late=(5, 100.0))).verdicts}
    assert "network" not in causes


def test_what_an_overlap_swallows_deserves_no_verdict() -> None:
    assert not diagnose(a_wired_job(through(5), costs=False)).verdicts


def test_a_rank_that_computes_all_the_time_waits_for_no_transfer() -> None:
    """Slow from the first step on, so that no step shows how long steps are without it."""
    window = a_wired_job(through(5, since=0))
    steps = window.tables["steps"]
    phases = (
        steps.with_column("phase", Strings.of(["backward-compute"] * len(steps)))
        .with_column("microbatch", np.full(len(steps), -1))
        .with_column("wait_ns", np.zeros(len(steps), np.int64))
    )
    assert not diagnose(put(window, phases=phases)).verdicts


@pytest.mark.parametrize(("active", "judged"), [(None, False), (0.0, False), (0.8, True)])
def test_gloo_moves_data_by_processors(active: float | None, judged: bool) -> None:
    """Where nothing is known of kernels, counters tell whether devices are at work. Its members end
    one after the other."""
    window = without(a_wired_job(through(5)), "kernel_summaries")
    comm = window.tables["comm_ops"]
    start, end = comm.ints("start_ns"), comm.ints("end_ns")
    later = (end - start) * (comm.ints("rank") % 4) // 25
    window = put(window, comm_ops=comm.with_column("end_ns", end + later))
    if active is not None:
        steps = window.tables["steps"]
        samples = Table({"rank": steps.ints("rank"), "host": Strings.of([""] * len(steps)),
                         "metric": Strings.of(["sm_active"] * len(steps)),
                         "ts_ns": steps.ints("start_ns"),
                         "value": np.full(len(steps), active)})  # fmt: skip
        window = put(window, hardware=samples)
    assert ("slow-link" in methods(window)) == judged


@pytest.mark.parametrize("column", ["start_ns", "end_ns", "bytes", "step"])
def test_what_is_unknown_counts_for_nothing(column: str) -> None:
    comm = a_wired_job(through(5)).tables["comm_ops"]
    unknown = comm.with_column(column, np.full(len(comm), NULL))
    assert "links" not in methods(put(a_wired_job(through(5)), comm_ops=unknown))


@pytest.mark.parametrize("noise", [0.05, 0.4])
@pytest.mark.parametrize("tail", [0, 3])
def test_healthy_networks_are_silent(noise: float, tail: int) -> None:
    """Student's noise of three degrees: now and then some transfer takes several times as long."""
    for seed in range(2):
        assert not diagnose(a_wired_job(noise=noise, tail=tail, seed=seed)).verdicts


def test_transfers_shorter_than_the_clock_ticks_are_no_alibi() -> None:
    """Sends of 0.3 ms that take 1.2 ms by a slow adapter, with times in whole milliseconds."""
    random = np.random.default_rng(0)
    window = a_wired_job(through(5))
    comm = window.tables["comm_ops"]
    sent = comm.strings("op").equals("Send", "Recv")
    slow = (comm.ints("step") >= 30) & (comm.ints("rank") == 5)
    chance = np.where(slow, 0.95, 0.3)
    ticks = (random.uniform(size=len(comm)) < chance).astype(np.int64) * MS
    end = np.where(sent, comm.ints("start_ns") + ticks, comm.ints("end_ns"))
    rates = measure_rates(Observed(put(window, comm_ops=comm.with_column("end_ns", end))))
    assert rates is not None
    for place, taken in zip(rates.places, rates.taken_ns, strict=True):
        assert np.isnan(taken).all() == place.is_pair, place


def test_how_likely_something_happens_so_often_by_chance() -> None:
    assert np.exp(log_tail(2, 10, 0.01)) == pytest.approx(
        1 - 0.99**10 - 10 * 0.01 * 0.99**9, rel=0.05
    )
    assert log_tail(5, 10, 0.9) == 0.0


def test_past_episodes_are_distinguished_from_one_that_goes_on() -> None:
    slow = np.array([[1, 1, 0, 0, 1, 0], [0, 0, 0, 1, 1, 1]], np.bool_)
    runs = Runs.of(slow)
    assert (sorted(runs.length.tolist()), runs.longest, runs.passing) == ([1, 2, 3], 3, 2)


def test_where_all_places_are_slow_in_bursts_no_device_is_accused() -> None:
    """Somebody else's traffic: three times as long for a few steps, here and there."""
    bursts = np.random.default_rng(1).random((400, 100)) < 0.01

    def passing(members: tuple[int, ...], step: int) -> float:
        return 3.0 if bursts[sum(members) * 7 % 400, max(step - 3, 0) : step + 1].any() else 1.0

    assert not diagnose(a_wired_job(passing, steps=80)).verdicts


@pytest.mark.parametrize(("slow", "begin"), [
    ([14, *range(20, 40)], 20), ([25, 26, 35, 36, 45, 46], 25), ([10, 20], 10), ([3, 4, 5], 3),
])  # fmt: skip
def test_one_step_that_is_slow_by_chance_is_not_when_a_link_became_slow(
    slow: list[int], begin: int
) -> None:
    assert without_strays(np.array(slow))[0] == begin


@pytest.mark.parametrize("steps", [5, 15, 30])
def test_two_adapters_that_are_slow_by_turns_are_both_named(steps: int) -> None:
    def by_turns(members: tuple[int, ...], step: int) -> float:
        return through(5 if step // steps % 2 else 10, times=10.0, since=0)(members, step)

    found = diagnose(a_wired_job(by_turns)).verdicts
    assert sorted(one.ranks for one in found) == [(5,), (10,)]
    assert sum(one.lost_fraction or 0.0 for one in found) > 0.25


def test_where_all_adapters_of_a_host_are_slow_it_is_what_they_share() -> None:
    found = the_verdict(a_wired_job(through(4, 5)))
    assert (names(found)[0], found.devices[0].type, found.ranks) == ("h2", "host", (4, 5))


def test_a_lone_group_that_is_slow_now_and_then_is_like_none_of_its_other_steps() -> None:
    """Holmes, section 3.1.1: a link that flaps. No other group shows how often that is chance."""
    rows, now = [], START
    for step in range(60):
        took = (150 if step in (9, 20, 37, 47, 49) else 5) * MS
        for at in range(2):
            now += 60 * MS
            rows += [(rank, step, "dp-0", 2 * step + at, "AllReduce", -1, 1 << 26,
                      now, now, now + took) for rank in range(8)]  # fmt: skip
            now += took
    names = "rank step group seq op peer bytes enqueue_ns start_ns end_ns"
    hosts = tuple(Host(f"h{at}", tuple(range(4 * at, 4 * at + 4))) for at in range(2))
    found = the_verdict(Window(Job("flaps", 8, hosts), {"comm_ops": a_table(names, rows)}))
    assert (found.ranks, found.group) == ((), "dp-0")
    assert found.steps == (9, 49)
    assert "comes and goes" in found.advice
