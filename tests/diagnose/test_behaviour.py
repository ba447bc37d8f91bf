"""EROICA's equations 6 to 11, worked out by hand, and their robust form on windows with a story."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.diagnose.account.ranges import Judge, shipped
from stepscope.diagnose.detect.published import eroica
from stepscope.diagnose.detect.published.eroica import as_published, distance, sample_of
from stepscope.diagnose.expected import NOTHING, Range, Ranges
from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import Settings
from stepscope.diagnose.views.patterns import Function
from stepscope.window import Floats, Window

from .jobs import Fault, a_job
from .profiles import Share, a_window, but, profile, usual

RANKS = 16
WHOLE = Range(0.0, 1.0)


def pattern(*workers: tuple[float, float, float]) -> eroica.Singles:
    return np.array(workers, np.float32).T


def test_the_distance_from_expectation_is_the_way_into_the_range() -> None:
    """R = [0, 0.01] x [0, 1] x [0, 1] of a Python function (equations 6 and 7)."""
    expected = Ranges(Range(0.0, 0.01), WHOLE, WHOLE)
    found = distance(pattern((0.5, 0.9, 0.1), (0.01, 0.2, 0.0), (0.03, 0.0, 0.0)), expected)
    assert found == pytest.approx([0.49, 0.0, 0.02], abs=1e-7)


def test_the_distance_adds_up_what_lies_outside_of_each_side() -> None:
    """|0.2 - 0.5| below, |0.9 - 0.6| above, nothing in the third."""
    expected = Ranges(Range(0.5, 1.0), Range(0.0, 0.6), Range(0.0, 0.5))
    assert distance(pattern((0.2, 0.9, 0.4)), expected) == pytest.approx([0.6], abs=1e-6)


def test_each_coordinate_is_divided_by_its_largest_value() -> None:
    """Equation 8; a coordinate that is 0 everywhere stays 0."""
    found = eroica.normalised(pattern((0.2, 0.5, 0.0), (0.4, 0.25, 0.0)))
    assert found.T.tolist() == [[0.5, 1.0, 0.0], [1.0, 0.5, 0.0]]


def test_peers_count_from_the_limit_on() -> None:
    """(1, 1, 1) and (0.6, 1, 1) are 0.4 apart, which is not below delta; 0.39 is (eq. 10)."""
    points = pattern((1.0, 1.0, 1.0), (0.6, 1.0, 1.0), (0.61, 1.0, 1.0))
    assert eroica.unlike(points, points, 0.4).tolist() == [1, 1, 0]


def test_three_small_differences_make_one_large_distance() -> None:
    """0.15 in each coordinate: 0.45 in all (Manhattan)."""
    points = pattern((1.0, 1.0, 1.0), (0.85, 0.85, 0.85))
    assert eroica.unlike(points, points, 0.4).tolist() == [1, 1]


def test_one_of_ten_is_abnormal_as_the_paper_counts() -> None:
    """Nine alike have N Delta = 1, the odd one 9: the median is 1, the MAD 0 (eq. 9, 11)."""
    workers = [(0.3, 0.9, 0.1)] * 9 + [(0.9, 0.9, 0.1)]
    counts = eroica.unlike(
        eroica.normalised(pattern(*workers)), eroica.normalised(pattern(*workers)), 0.4
    )
    assert counts.tolist() == [1] * 9 + [9]
    assert eroica.median_and_mad(counts, 10) == (1.0, 0.0)
    assert eroica.outliers(counts, 10, 5.0).tolist() == [False] * 9 + [True]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([3], (3, 0)), ([1, 2], (1.5, 0.5)), ([0, 0, 0, 100], (0, 0)), ([1, 2, 4, 9], (3, 1.5))],
)
def test_medians_of_counts(counts: list[int], expected: tuple[float, float]) -> None:
    assert eroica.median_and_mad(np.array(counts, np.int32), 100) == expected


@given(st.lists(st.integers(0, 100), min_size=1, max_size=60))
def test_medians_of_counts_are_numpys(counts: list[int]) -> None:
    values = np.array(counts)
    middle = float(np.median(values))
    apart = float(np.median(np.abs(values - middle)))
    assert eroica.median_and_mad(values.astype(np.int32), 100) == (middle, apart)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3000), st.integers(1, 100))
@settings(max_examples=30, deadline=None)
def test_the_compiled_form_counts_as_numpy_does(seed: int, workers: int, peers: int) -> None:
    random = np.random.default_rng(seed)
    points, some = (random.random((3, size), np.float32) for size in (workers, peers))
    fast, slow = eroica.unlike(points, some, 0.4), eroica.unlike_in_numpy(points, some, 0.4)
    # the order of additions may differ in the last bit: one pair in millions
    assert int(np.abs(fast - slow).sum()) <= 1


def test_the_published_rule_ignores_what_is_below_one_percent() -> None:
    workers = pattern(*[(0.001, 0.9, 0.1)] * 9, (0.009, 0.9, 0.1))
    found = as_published(workers, Ranges(Range(0.0, 0.001), WHOLE, WHOLE), sample_of(10))
    assert not found.unexpected.any() and not found.different.any()


def test_a_glitch_hides_a_slow_worker_from_the_published_rule() -> None:
    """beta = 1 rescales all: 0.3 and 0.6 are 0.3 apart then. The algorithm notes found it."""
    slow = [(0.3, 0.9, 0.1)] * 18 + [(0.6, 0.9, 0.1)]
    glitch = (1.0, 0.9, 0.1)
    plain = as_published(pattern(*slow), None, sample_of(19))
    hidden = as_published(pattern(*slow, glitch), None, sample_of(20))
    assert plain.different[18] and not hidden.different[18]


def test_shipped_ranges_are_the_papers() -> None:
    def high(kind: str, devices: bool = True) -> float:
        return shipped(Function("f", kind), devices).beta.high

    assert (high("python"), high("collective"), high("kernel")) == (0.01, 0.3, 1.0)
    assert (high("operator"), high("operator", devices=False)) == (0.1, 1.0)


# ---- the robust form, in one verdict ----


def found(window: Window, methods: tuple[str, ...] = ()) -> Diagnosis:
    return diagnose(window, Settings(methods=methods))


def one_slow(
    function: str, beta: Floats | float, mu: Floats | None = None, calls: Floats | None = None
) -> list[Share]:
    """A healthy window in which one function takes so long, and the others wait for its ranks."""
    shares = usual(RANKS, 0.03, 1)
    at = next(at for at, one in enumerate(shares) if one.function == function)
    slow = replace(shares[at], beta=beta)
    slow = slow if mu is None else replace(slow, mu=mu)
    shares[at] = slow if calls is None else replace(slow, calls=calls)
    busy = sum(np.broadcast_to(np.asarray(one.beta), (RANKS,)) for one in shares[:-1])
    return [*shares[:-1], replace(shares[-1], beta=np.clip(0.97 - busy, 0, 1))]


def judged(shares: Sequence[Share]) -> Diagnosis:
    return found(a_window(RANKS, profile(RANKS, shares)))


def test_a_device_at_half_its_clock_is_named_with_its_kernel() -> None:
    clock = but(0.95, RANKS, r3=0.5)
    (verdict,) = judged(one_slow("gemm", but(0.3, RANKS, r3=0.6), mu=clock)).verdicts
    assert (verdict.cause, verdict.ranks, verdict.kernels) == ("compute", (3,), ("gemm",))
    assert "53 % of the others' speed" in verdict.summary
    assert verdict.lost_fraction == pytest.approx(0.3, abs=0.03)


def test_two_of_eight_are_named() -> None:
    shares = [replace(one, beta=np.asarray(one.beta)[:8]) for one in usual(RANKS, 0.03, 1)]
    slow = replace(shares[0], beta=but(0.3, 8, r2=0.6, r5=0.62), mu=0.95)
    window = a_window(8, profile(8, [slow, *(replace(one, mu=None) for one in shares[1:4])]))
    (verdict,) = found(window).verdicts
    assert verdict.ranks == (2, 5)


def test_a_glitch_does_not_hide_a_slow_rank() -> None:
    (verdict,) = judged(one_slow("gemm", but(0.3, RANKS, r3=0.6, r9=0.95))).verdicts
    assert set(verdict.ranks) == {3, 9}


def test_a_function_of_one_rank_is_named_with_file_and_line() -> None:
    (verdict,) = judged(one_slow("forward", but(0.005, RANKS, r7=0.3))).verdicts
    assert (verdict.cause, verdict.ranks) == ("host", (7,))
    assert verdict.function == "forward (model.py:31)"
    assert "called at train.py:9 main" in verdict.evidence[0].detail


def test_what_is_slow_in_profiled_steps_alone_is_a_single_stall() -> None:
    """One call took a tenth of a second; own times before and after show nothing of it."""
    shares = one_slow("forward", but(0.005, RANKS, r7=0.05))
    patterns = a_window(RANKS, profile(RANKS, shares, steps=(100, 119))).tables
    job = a_job(ranks=RANKS, steps=160, noise=0.01, stacks=False)
    assert found(Window(job.job, {**job.tables, **patterns})).verdicts == ()
    (verdict,) = found(Window(job.job, dict(patterns))).verdicts
    assert verdict.ranks == (7,), "where nothing else was recorded, it is all that is known"
    slow = a_job(RANKS, 160, 0.01, faults=[Fault((7,), "forward-compute", 60, ms=4)], stacks=False)
    (verdict,) = found(Window(job.job, {**slow.tables, **patterns})).verdicts
    assert verdict.ranks == (7,)


def test_an_operator_that_hosts_run_is_in_their_own_times() -> None:
    """Without a device it held up one rank for a second, when its profiler ended."""
    rows = [
        Share("aten::mm", "operator", 0.6),
        Share("aten::mul_", "operator", but(0.0, 8, r2=0.16)),
    ]
    patterns = a_window(8, profile(8, rows, steps=(100, 119))).tables
    job = a_job(ranks=8, steps=160, noise=0.01, stacks=False)
    (verdict,) = found(Window(job.job, dict(patterns))).verdicts
    assert (verdict.cause, verdict.ranks) == ("compute", (2,))
    assert found(Window(job.job, {**job.tables, **patterns})).verdicts == ()


def test_who_calls_a_function_more_often_has_more_work() -> None:
    more = one_slow("gemm", but(0.3, RANKS, r3=0.6), calls=but(1000, RANKS, r3=2000))
    (verdict,) = judged(more).verdicts
    assert (verdict.cause, verdict.ranks) == ("load_imbalance", (3,))


def test_further_calls_may_be_longer_ones_if_the_device_is_no_slower() -> None:
    slow = one_slow("gemm", but(0.3, RANKS, r3=0.5), calls=but(1000, RANKS, r3=1200))
    assert [one.cause for one in judged(slow).verdicts] == ["load_imbalance"]
    slow[1] = replace(slow[1], beta=but(0.2, RANKS, r3=0.35))
    assert [one.cause for one in judged(slow).verdicts] == ["compute"]


def test_victims_of_a_collective_are_not_named() -> None:
    """All ranks but one wait in a collective: it is not their fault, and only one works more."""
    shares = one_slow("gemm", but(0.2, RANKS, r3=0.8))
    waiting = np.asarray(shares[-1].beta)
    assert (waiting[:3] > 0.4).all()
    assert [one.ranks for one in judged(shares).verdicts] == [(3,)]


def test_what_a_rank_does_instead_of_something_else_delays_nobody() -> None:
    shares = usual(RANKS, 0.0)
    instead = [
        replace(shares[0], beta=but(0.4, RANKS, r5=0.2)),
        Share("other_gemm", "kernel", but(0.0, RANKS, r5=0.2)),
    ]
    assert not judged([*instead, *shares[1:]]).verdicts


def test_a_function_that_is_slow_everywhere_has_a_verdict_without_rank() -> None:
    (verdict,) = judged(one_slow("forward", 0.2)).verdicts
    assert (verdict.cause, verdict.ranks) == ("code", ())
    assert verdict.function == "forward (model.py:31)"
    assert "a healthy job shows 1 % at most" in verdict.evidence[0].detail
    assert verdict.lost_fraction == pytest.approx(0.19)


def test_functions_that_one_line_calls_are_added_up() -> None:
    parts = [Share(name, "python", 0.05, location=f"json/{name}.py:3", caller="data.py:8 load")
             for name in ("scan", "decode", "raw")]  # fmt: skip
    (verdict,) = judged([*one_slow("gemm", 0.3), *parts]).verdicts
    assert verdict.lost_fraction == pytest.approx(0.12)
    assert "with 2 more that the same line calls, 15 %" in verdict.evidence[0].detail


def test_a_loader_thread_means_data_loading() -> None:
    pin = Share("pin_memory", "python", 0.2, location="pin.py:52", thread="pin memory")
    (verdict,) = judged([*one_slow("gemm", 0.3), pin]).verdicts
    assert (verdict.cause, verdict.ranks) == ("data_loading", ())


def test_the_link_that_others_wait_for_is_steady() -> None:
    """Figures 3 to 5: all of a ring move less, and only the slow link does so without a pause."""
    shares = usual(RANKS, 0.0)
    ring = replace(shares[-1], mu=0.4, sigma=but(0.4, RANKS, r7=0.03), beta=0.4)
    (verdict,) = judged([*shares[:-1], ring]).verdicts
    assert (verdict.cause, verdict.ranks) == ("network", (7,))
    assert verdict.devices[0].name == "host-000/nic-7"


def test_in_a_ring_of_some_ranks_too() -> None:
    low = but(0.8, RANKS, r4=0.4, r5=0.41, r6=0.4, r7=0.39)
    pauses = but(0.1, RANKS, r4=0.35, r5=0.35, r6=0.36, r7=0.03)
    shares = usual(RANKS, 0.0)
    (verdict,) = judged([*shares[:-1], replace(shares[-1], mu=low, sigma=pauses)]).verdicts
    assert verdict.ranks == (7,)


def test_of_two_neighbours_the_later_one_has_the_slow_adapter() -> None:
    """Rank 3 sends to rank 11, the same place on the next host, as slowly as rank 11 takes it."""
    ranks = 32
    shares = usual(ranks, 0.0)
    ring = replace(shares[-1], mu=0.4, sigma=but(0.4, ranks, r3=0.03, r11=0.03), beta=0.4)
    (verdict,) = found(a_window(ranks, profile(ranks, [*shares[:-1], ring]))).verdicts
    assert verdict.ranks == (11,)


def test_who_sends_through_pcie_has_lost_nvlink() -> None:
    shares = usual(RANKS, 0.0)
    lost = replace(shares[-1], mu=but(0.2, RANKS, r5=0.6), resource="pcie",
                   beta=but(0.3, RANKS, r4=0.5, r5=0.5, r6=0.5))  # fmt: skip
    (verdict,) = judged([*shares[:-1], lost]).verdicts
    assert (verdict.ranks, verdict.devices[0].name) == ((5,), "host-000/nvlink")


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_healthy_windows_accuse_nobody(noise: float, seed: int) -> None:
    """Of 3,000 windows with the most noise two accuse somebody, so the examples are fixed."""
    window = a_window(RANKS, profile(RANKS, usual(RANKS, noise, seed)))
    assert not found(window).verdicts


def test_what_wanders_from_rank_to_rank_accuses_no_rank() -> None:
    rows = None
    for turn in range(4):
        slow = one_slow("forward", but(0.005, RANKS, **{f"r{turn}": 0.2}))
        rows = profile(RANKS, slow, (20 * turn, 20 * turn + 3), turn, rows)
    assert rows is not None
    assert not any(one.ranks for one in found(a_window(RANKS, rows)).verdicts)


def test_garbage_that_ranks_collect_in_turns_is_named() -> None:
    rows = None
    for turn in range(4):
        collect = Share("collect", "python", but(0.0, RANKS, r1=0.02 * turn, r9=0.03),
                        location="gc.py:1")  # fmt: skip
        rows = profile(RANKS, [*one_slow("gemm", 0.3), collect], (9 * turn, 9 * turn + 3), turn,
                       rows)  # fmt: skip
    assert rows is not None
    causes = {one.cause for one in found(a_window(RANKS, rows)).verdicts}
    assert "gc" in causes


def test_by_name_the_published_rule_runs_alone() -> None:
    window = a_window(RANKS, profile(RANKS, one_slow("gemm", but(0.3, RANKS, r3=0.9))))
    diagnosis = found(window, methods=("eroica-published",))
    assert any(one.ranks == (3,) and one.kernels == ("gemm",) for one in diagnosis.verdicts)


def test_calls_from_several_places_are_one_function() -> None:
    callers = (0.1, "a.py:1 a"), (0.3, "b.py:2 b")
    rows = profile(4, [Share("read", "python", beta, location="io.py:3", caller=caller)
                       for beta, caller in callers])  # fmt: skip
    (window,) = Observed(a_window(4, rows)).patterns
    (function,) = window.functions
    assert (function.caller, window.beta[0].tolist()) == ("b.py:2 b", pytest.approx([0.4] * 4))


def test_a_rank_that_was_not_profiled_is_unknown() -> None:
    rows = profile(3, usual(3))
    (window,) = Observed(a_window(4, rows, {"losses": rows.table().take(np.array([0]))})).patterns
    assert window.rows.tolist() == [0, 1, 2]


def test_impossible_shares_are_left_out() -> None:
    rows = profile(4, [Share("f", "kernel", 7.0), Share("g", "kernel", 0.5)])
    (window,) = Observed(a_window(4, rows)).patterns
    assert [one.name for one in window.functions] == ["g"]


def test_without_devices_operators_are_the_work() -> None:
    rows = profile(4, [Share("aten::mm", "operator", 0.8)])
    window = a_window(4, rows)
    (patterns,) = Observed(window).patterns
    assert Judge(patterns, NOTHING).expected(patterns.functions[0]).beta.high == 1.0
    assert not found(window).verdicts


@pytest.mark.parametrize(
    ("name", "cause"),
    [("aten::mm", "host"), ("_compile.compile_inner (dynamo_timed)", "jit_compile")],
)
def test_with_devices_an_operator_is_the_host_that_launches(name: str, cause: str) -> None:
    """Its device stands still meanwhile: it is no GPU that computes slowly."""
    operator = Share(name, "operator", but(0.0, RANKS, r4=0.3))
    (verdict,) = judged([*one_slow("gemm", 0.3), operator]).verdicts
    assert (verdict.cause, verdict.ranks, verdict.function) == (cause, (4,), name)
    assert not verdict.kernels


def test_what_one_of_two_ranks_loads_is_not_what_both_load() -> None:
    loads = Share("enumerate(DataLoader)#_Iter.__next__", "python", but(0.0, 2, r1=0.7))
    found = judged_pair([Share("gemm", "kernel", 0.3), loads]).verdicts
    assert all(verdict.ranks for verdict in found)


def judged_pair(shares: Sequence[Share]) -> Diagnosis:
    return found(a_window(2, profile(2, shares)))


def test_our_own_threads_are_no_functions_of_the_job() -> None:
    ours = Share("run", "python", 0.04, location="threading.py:9", thread="GIL: stepscope-profile")
    rows = profile(4, [Share("aten::mm", "operator", 0.8), ours])
    assert [one.name for one in found(a_window(4, rows)).functions] == ["aten::mm"]


def test_an_operator_launches_also_where_all_kernels_are_short() -> None:
    """No kernel takes a share of the window that is kept, and yet the device computes."""
    short = [Share(f"kernel_{at}", "kernel", 0.0001) for at in range(3)]
    rows = profile(4, [Share("aten::mm", "operator", 0.3), *short])
    (patterns,) = Observed(a_window(4, rows)).patterns
    assert patterns.has_devices and not any(map(patterns.on_device, patterns.functions))
