"""Modes of kernel durations: native code against slow reference versions, and what is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepscope.processor.compress import compiled
from stepscope.processor.compress.modes import Histograms, Modes, Refused, as_published
from stepscope.trace.modes import LARGEST_ERROR
from stepscope.window import Ints

from .slow_compress import Triple, divided_slowly, host_minute, published_slowly

LONGEST = 10**15


def ints(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)


def zeros(count: int) -> Any:
    return np.zeros(count, np.uint32)


def triples(modes: Modes, group: int = 0) -> list[Triple]:
    rows = modes[modes["group"] == group]
    assert rows["cluster"].tolist() == list(range(len(rows)))
    return [(int(r["count"]), int(r["p50_ns"]), int(r["p99_ns"])) for r in rows]


def all_published(durations: Sequence[int] | Ints) -> Modes:
    return as_published(zeros(len(durations)), np.asarray(durations, np.int64), 1)[0]


def modes_of(durations: Sequence[int] | Ints) -> Modes:
    histograms = Histograms()
    assert histograms.add(zeros(len(durations)), np.asarray(durations, np.int64)) == Refused()
    return histograms.modes()


def published(durations: Ints) -> list[Triple]:
    return triples(all_published(durations))


def summed_up(durations: Ints) -> list[Triple]:
    return triples(modes_of(durations))


def test_a_stall_too_rare_for_any_percentile_is_the_longest_of_its_mode() -> None:
    """One in ten thousand, forty times as long (ARGUS, case 4)."""
    durations = ints([1000 + n % 50 for n in range(10_000)] + [40_000])
    [mode] = modes_of(durations)
    assert mode["p99_ns"] < 1060
    assert abs(mode["max_ns"] - 40_000) <= 40_000 * LARGEST_ERROR
    [mode] = all_published(durations)
    assert (mode["p99_ns"], mode["max_ns"]) == (1049, 40_000)


def test_the_papers_arithmetic_by_hand() -> None:
    """Five at 1 us and five e^2 times as long: sigma 1, h = 1.06 * 10^-0.2 = 0.669.

    At the peaks the curve is 5 (1 + exp(-(2 / 0.669)^2 / 2)) = 5.06, half-way between them
    10 exp(-(1 / 0.669)^2 / 2) = 3.27: a valley, five on either side, and boundaries are few.
    """
    assert published(ints([1000, 7389] * 5)) == [(5, 1000, 1000), (5, 7389, 7389)]
    assert published(ints([1000, 7389] * 4)) == [(8, 1000, 7389)]  # four are no mode
    # of 1 to 100 us the median is the 50th, and 99 % do not exceed the 99th
    assert published(ints(range(1000, 101_000, 1000))) == [(100, 50_000, 99_000)]
    assert published(ints([900] * 5 + [1100] * 5)) == [(5, 900, 900), (5, 1100, 1100)]


def test_one_bandwidth_for_all_hides_modes_that_each_part_with_its_own_shows() -> None:
    """Two modes 1.3 times apart beside a third far off, which makes sigma 2.3 and h 0.62."""
    rng = np.random.default_rng(1)
    log = np.repeat(np.log([1e4, 1.3e4, 1e6]), 1000) + 0.03 * rng.standard_normal(3000)
    durations = np.rint(np.exp(log)).astype(np.int64)
    assert [count for count, _, _ in published(durations)] == [2000, 1000]
    assert [count for count, _, _ in summed_up(durations)] == [1000, 1000, 1000]


@st.composite
def apart(draw: st.DrawFn, fewest: int, most: int) -> Ints:
    """Modes with nothing between them."""
    at = draw(st.integers(300, 10**6))
    values: list[int] = []
    for _ in range(draw(st.integers(fewest, most))):
        at = at * draw(st.integers(3, 9))
        spread = st.integers(-(at // 25), at // 25)
        values += [at + one for one in draw(st.lists(spread, min_size=20, max_size=60))]
    return ints(values)


@given(apart(2, 2))
def test_two_modes_apart_come_out_as_published_by_the_slow_twin(durations: Ints) -> None:
    """Of more, or in a single one, a ripple of the curve may decide, which the grid may lose."""
    assert published(durations) == published_slowly(durations)


@given(apart(1, 4))
def test_modes_apart_come_out_of_histograms_as_of_the_slow_twin(durations: Ints) -> None:
    """Or as of a slightly other bandwidth: curves are added up on a grid."""
    assert summed_up(durations) in [divided_slowly(durations, widen) for widen in (1, 0.97, 1.03)]


def test_modes_that_run_into_one_another_do_so_nearly_always() -> None:
    """A boundary may differ by a sample: curves are added up on a grid."""
    rng = np.random.default_rng(2)
    same = np.zeros(2)
    for _ in range(100):
        size = int(rng.integers(30, 600))
        mode = rng.integers(0, 3, size)
        log = rng.uniform(8, 12) + 0.35 * mode + rng.uniform(0.02, 0.2) * rng.standard_normal(size)
        durations = np.exp(log).astype(np.int64)
        same += (
            published(durations) == published_slowly(durations),
            summed_up(durations) == divided_slowly(durations),
        )
    assert same.min() >= 97


def test_the_true_number_of_modes_is_found() -> None:
    groups, durations, truth = host_minute(ranks=2, seed=5)
    histograms = Histograms()
    histograms.add(groups, durations)
    found = np.bincount(histograms.modes()["group"], minlength=len(truth))
    assert (found == truth).mean() >= 0.99


@pytest.mark.parametrize("shape", ["ticks", "skewed", "heavy", "flat"])
def test_one_mode_stays_one_whatever_its_shape(shape: str) -> None:
    rng = np.random.default_rng(3)
    histograms, many = Histograms(), 200
    for group in range(many):
        size = int(10 ** rng.uniform(1.3, 3.7))
        log = {
            "ticks": 0.08 * rng.standard_normal(size),
            "skewed": 0.1 * rng.standard_exponential(size),
            "heavy": 0.03 * rng.standard_t(3, size),
            "flat": 0.2 * rng.random(size),
        }[shape]
        # in steps of 32 ns, as GPUs time their kernels
        durations = np.rint(1300 * np.exp(log) / 32).astype(np.int64) * 32
        histograms.add(np.full(size, group, np.uint32), durations)
    assert len(histograms.modes()) <= 1.01 * many


ANY = st.lists(
    st.integers(0, 300) | st.integers(0, LONGEST - 1) | st.integers(10**5, 10**5 + 999),
    min_size=1, max_size=300,
)  # fmt: skip


@given(ANY)
@example([7] * 1000)
@example([0])
@example([LONGEST - 1] * 6 + [LONGEST - 2] * 6 + [1])
def test_counts_are_whole_and_percentiles_true_within_the_bound(values: list[int]) -> None:
    durations = np.sort(np.maximum(ints(values), 1))
    begin = {0: 0, 1: 0}
    longests = [iter(rows["max_ns"].tolist()) for rows in (all_published(values), modes_of(values))]
    for kind, found in enumerate((published(ints(values)), summed_up(ints(values)))):
        assert sum(count for count, _, _ in found) == len(values)
        for count, p50, p99 in found:
            part = durations[begin[kind] :][:count]
            begin[kind] += count
            longest = next(longests[kind])
            true = part[(count - 1) // 2], part[(99 * count + 99) // 100 - 1], part[-1]
            for got, want in zip((p50, p99, longest), true, strict=True):
                exact = kind == 0 or want < 256
                assert abs(got - want) <= (0 if exact else want * LARGEST_ERROR)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**7)), max_size=200), st.randoms())
def test_pieces_are_as_all_at_once(events: list[tuple[int, int]], random: Any) -> None:
    groups = np.array([group for group, _ in events], np.uint32)
    durations = ints([duration for _, duration in events])
    whole, pieces = Histograms(), Histograms()
    whole.add(groups, durations)
    half = random.randint(0, len(events))
    pieces.add(groups[:half], durations[:half])
    pieces.add(groups[half:], durations[half:])
    assert pieces.modes().tolist() == whole.modes().tolist()


def test_renumbering_groups_renumbers_rows_and_no_more() -> None:
    groups, durations, _ = host_minute(ranks=1, groups=10, events=2000)
    there, back = Histograms(), Histograms()
    there.add(groups, durations)
    back.add(9 - groups, durations)
    rows = as_published(groups, durations, 10)[0], as_published(9 - groups, durations, 10)[0]
    for modes, other in ((there.modes(), back.modes()), rows):
        for group in range(10):
            assert triples(modes, group) == triples(other, 9 - group)


@pytest.mark.parametrize("wrong", [-1, LONGEST, 2**63 - 1, -(2**63)])
def test_what_cannot_be_true_is_counted_and_left_out(wrong: int) -> None:
    durations = ints([5, wrong, 5])
    modes, refused = as_published(zeros(3), durations, 1)
    histograms = Histograms()
    assert refused == histograms.add(zeros(3), durations) == Refused(impossible=1)
    assert triples(modes) == triples(histograms.modes()) == [(2, 5, 5)]


def test_nothing_has_no_modes() -> None:
    assert len(as_published(zeros(0), ints([]), 0)[0]) == 0
    assert len(as_published(zeros(0), ints([]), 5)[0]) == 0
    assert len(Histograms().modes()) == 0


def test_one_sample_in_a_million_far_off_does_not_fill_the_memory() -> None:
    """The published bandwidth is a sliver of the range there, and its grid has an end."""
    durations = ints([1000, 1001] * 200_000 + [LONGEST - 1])
    assert sum(count for count, _, _ in published(durations)) == len(durations)


def test_memory_has_an_end_and_what_does_not_fit_is_counted() -> None:
    histograms = Histograms(most_groups=3, most_blocks=4)
    groups = np.arange(5, dtype=np.uint32)
    assert histograms.add(groups, ints([1000] * 5)) == Refused(no_room=2)
    assert histograms.add(zeros(20), ints([1 << at for at in range(20)])) == Refused(no_room=18)
    assert histograms.modes()["count"].sum() == 3 + 2


def test_arguments_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="no such group"):
        as_published(np.array([1], np.uint32), ints([1]), 1)
    with pytest.raises(ValueError, match="too many groups"):
        as_published(zeros(1), ints([1]), 2**64 - 1)
    with pytest.raises(ValueError, match="differ in length"):
        Histograms().add(zeros(2), ints([1]))
    with pytest.raises(ValueError, match="half a number"):
        compiled.Histograms(1, 1).add(b"123", b"123")
    with pytest.raises(OverflowError):
        compiled.Keys(-1)
    with pytest.raises(TypeError):
        compiled.Keys(1).codes(0, "text", b"")  # type: ignore[arg-type]


def test_an_installation_without_the_native_part_says_what_is_missing() -> None:
    program = (
        "import sys; sys.modules['stepscope._native'] = None\n"
        "import stepscope.processor.daemon\n"
        "from stepscope.errors import MissingNativeError\n"
        "try: import stepscope.processor.compress.windows\n"
        "except MissingNativeError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "kernels cannot be summarised" in done.stdout and "python3-dev" in done.stdout
