"""Steps out of loads and optimizer steps. `aB` is a loop that loads, then steps."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.processor.state.steps import ON_THE_WAY_NS

from .loops import MS, Loop


def _check(loop: Loop) -> None:
    """What holds of any loop: steps never overlap, and their numbers grow."""
    ends = [step.start_ns + step.duration_ns for step in loop.steps]
    assert all(end <= step.start_ns for end, step in zip(ends, loop.steps[1:], strict=False))
    assert loop.numbers == sorted(set(loop.numbers))


def test_a_sequence_becomes_a_step_after_ten_repetitions() -> None:
    loop = Loop().run("aB" * 9 + "a")
    assert loop.steps == [] and loop.sequence == ""

    loop.run("B")
    assert loop.sequence == "aB"
    assert loop.numbers == list(range(10)), "the ten are told of afterwards"
    assert (loop.steps[3].start_ns, loop.steps[3].duration_ns) == (6 * MS, 2 * MS)


@pytest.mark.parametrize(
    ("iteration", "steps_per_iteration"),
    [
        pytest.param("aB", 1, id="plain"),
        pytest.param("aaaaB", 1, id="gradient-accumulation"),
        pytest.param("aBaC", 1, id="two-optimizers-in-turn"),
        pytest.param("aBbC", 1, id="two-loaders"),
        pytest.param("abBC", 1, id="gan"),
        pytest.param("a" + "B" * 12, 1, id="an-optimizer-per-parameter"),
        pytest.param("a" * 300 + "B", 1, id="300-microbatches"),
    ],
)
def test_loops(iteration: str, steps_per_iteration: int) -> None:
    loop = Loop().run(iteration * 25)

    assert loop.sequence == iteration
    assert loop.numbers == list(range(25 * steps_per_iteration))
    assert {step.duration_ns for step in loop.steps} == {len(iteration) * MS}


def test_a_loop_without_a_loader_steps_from_optimizer_to_optimizer() -> None:
    loop = Loop().run("A" * 30)

    assert loop.numbers == list(range(30))
    assert [step.start_ns for step in loop.steps[1:]] == [n * MS for n in range(1, 30)]


def test_one_batch_that_is_used_again_and_again() -> None:
    """Until it is clear that no other load comes, a row of optimizers may be one iteration."""
    loop = Loop().run("a" + "B" * 511)
    assert loop.steps == []

    loop.run("B" * 20)
    assert loop.sequence == "B"
    assert loop.numbers == list(range(loop.numbers[0], 531))


def test_evaluation_between_steps_is_no_step() -> None:
    loop = Loop().run(("aB" * 20 + "e" * 30) * 3)

    assert loop.sequence == "aB"
    assert loop.numbers == list(range(60))


def test_a_long_evaluation_costs_no_step() -> None:
    """More events than EROICA waits for before it looks for a new sequence."""
    loop = Loop().run("aB" * 20 + "e" * 1000 + "aB" * 3)

    assert loop.numbers == list(range(23))


def test_evaluation_with_the_training_loader_costs_no_step() -> None:
    loop = Loop().run("aaB" * 12 + "a" + "aaB" * 3)

    assert loop.numbers == list(range(15))


def test_evaluation_first() -> None:
    assert Loop().run("e" * 500 + "aB" * 10).numbers == list(range(10))


def test_a_change_of_the_loop_is_noticed() -> None:
    loop = Loop().run("aB" * 50 + "cccB" * 100)

    assert loop.sequence == "cccB"
    assert loop.numbers[:50] == list(range(50))
    assert loop.numbers[-1] == 149, "numbered by optimizer steps, as before"
    _check(loop)


@pytest.mark.parametrize("after", ["cBC", "cBcBcC", "A"])
def test_numbers_go_on_where_another_count_of_optimizers_begins(after: str) -> None:
    """Two optimizer steps per iteration from now on: the numbers do not jump back."""
    loop = Loop().run("aB" * 100).run("dB" * 7 + after * 1200)
    before = [n for n in loop.numbers if n < 100]

    assert before == list(range(100))
    assert len(loop.numbers) > 105
    assert loop.numbers == list(range(100)) + list(
        range(loop.numbers[100], loop.numbers[100] + len(loop.numbers) - 100)
    )
    _check(loop)


@pytest.mark.parametrize("evaluation", ["e" * 5, "e" * 150, "e" * 400])
@pytest.mark.parametrize("change", ["", "ccB" * 150, "cBC" * 150])
def test_ranks_agree_on_step_numbers_if_one_evaluates(evaluation: str, change: str) -> None:
    """Rank 0 evaluates, the other does not; both go through the same optimizer steps."""
    others = Loop().run("aB" * 40 + "aB" * 20 + change)
    first = Loop().run("aB" * 40 + evaluation + "aB" * 20 + change)

    by_number = dict(zip(others.numbers, others.steps, strict=True))
    assert first.numbers[:60] == others.numbers[:60] == list(range(60))
    assert first.tracker.sequence is not None and others.tracker.sequence is not None
    common = set(first.numbers) & set(by_number)
    assert len(common) > 55
    for ordinal in range(first.ordinal - 50, first.ordinal):
        assert first.tracker.sequence.step_of(ordinal) == others.tracker.sequence.step_of(ordinal)
    _check(first)


def test_silence_for_five_average_iterations_is_a_block() -> None:
    loop = Loop()
    assert not loop.tracker.blocked(10**18), "nothing is known yet"
    loop.run("aB" * 12)

    heard_ns = loop.now_ns + ON_THE_WAY_NS
    assert not loop.tracker.blocked(heard_ns + 5 * 2 * MS)
    assert loop.tracker.blocked(heard_ns + 5 * 2 * MS + 1)


_iterations = st.text("abcABC", min_size=2, max_size=8).map(lambda body: f"a{body}B")


@given(_iterations, st.integers(0, 3))
def test_any_sequence_is_found_when_it_came_ten_times(iteration: str, more: int) -> None:
    loop = Loop().run(iteration * (10 + more))

    assert loop.sequence and iteration == loop.sequence * (len(iteration) // len(loop.sequence))
    assert sum(step.duration_ns for step in loop.steps) == loop.now_ns
    _check(loop)


@given(st.lists(st.tuples(st.text("abAB", min_size=1, max_size=5), st.integers(1, 60)), max_size=8))
def test_whatever_a_script_does_steps_do_not_overlap(parts: list[tuple[str, int]]) -> None:
    loop = Loop()
    for events, times in parts:
        loop.run(events * times)
    _check(loop)


def test_memory_is_taken_at_the_start_and_not_step_by_step() -> None:
    """What every step keeps as objects of its own grows for an hour of slow steps."""
    loop = Loop().run("aB" * 20)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            loop.run("aB" * 100)
            loop.steps.clear()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert grown < 20_000, "the average of the last fifty steps, and no more"
