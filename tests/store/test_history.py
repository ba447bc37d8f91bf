"""A long job: its newest steps are kept, the rest is neither kept nor read again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stepscope.store import JobReader, JobWriter, Location, job_location
from stepscope.store.compact import compact
from stepscope.store.history import LEAST_STEPS, History
from stepscope.store.layout import is_growing

from .conftest import Clock
from .samples import SECOND_NS, operators, pairs, steps, values

HALF_A_MINUTE = History(seconds=30.0)


@pytest.fixture
def got(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files of rows that were fetched since it was last emptied."""
    fetched: list[str] = []
    get = Location.get

    def counting(self: Location, path: str) -> bytes | None:
        if is_growing(path):
            fetched.append(path)
        return get(self, path)

    monkeypatch.setattr(Location, "get", counting)
    yield fetched


def begins_at(clock: Clock) -> int:
    """A step's start, as its host's clock shows it."""
    return int(clock.now_s) * SECOND_NS


def run(writer: JobWriter, clock: Clock, first: int, count: int, *ranks: int) -> None:
    """So many steps of a second each, stored twice a minute."""
    for number in range(first, first + count):
        for rank in ranks or (0,):
            row = {**steps(number, rank=rank), "start_ns": [begins_at(clock)]}
            writer.append("steps", row)
        clock.now_s += 1
        if number % 30 == 29:
            writer.flush()


def test_steps_from_before_are_forgotten_and_what_hangs_is_not(
    job: Location, writer: JobWriter, clock: Clock
) -> None:
    writer.append("comm_ops", operators(1, end_ns=9))
    writer.replace("comm_ops", "open", operators(2, end_ns=None))
    run(writer, clock, 0, 120)

    window = JobReader(job.url, HALF_A_MINUTE).refresh()

    assert values(window.table("steps"), "step") == list(range(89, 120))
    assert pairs(window.table("comm_ops"), "seq", "end_ns") == [(2, None)]


def test_no_more_rows_are_kept_than_may_be(job: Location, writer: JobWriter, clock: Clock) -> None:
    run(writer, clock, 0, 120, 0, 1, 2, 3)
    window = JobReader(job.url, History(rows=40 * 4)).refresh()
    assert sorted(set(values(window.table("steps"), "step"))) == list(range(80, 120))


def test_steps_are_kept_whole(job: Location, writer: JobWriter, clock: Clock) -> None:
    """Ranks are half a second apart: no moment lies between the steps of all."""
    early, late = begins_at(clock), begins_at(clock) + SECOND_NS // 2
    for number in range(100):
        for rank, start in enumerate((early, late)):
            row = {**steps(number, rank=rank), "start_ns": [start + number * SECOND_NS]}
            writer.append("steps", row)
    writer.flush()
    table = JobReader(job.url, History(rows=80)).refresh().tables["steps"]
    assert pairs(table, "rank", "step") == [(r, s) for r in (0, 1) for s in range(60, 100)]


def test_a_few_steps_are_kept_however_large_they_are(
    job: Location, writer: JobWriter, clock: Clock
) -> None:
    run(writer, clock, 0, 120)
    window = JobReader(job.url, History(rows=1)).refresh()
    assert len(values(window.table("steps"), "step")) == LEAST_STEPS


def test_a_job_without_steps_is_bounded_too(job: Location, writer: JobWriter, clock: Clock) -> None:
    writer.append("comm_ops", operators(*range(100), end_ns=9))
    writer.flush()
    window = JobReader(job.url, History(rows=40)).refresh()
    assert values(window.table("comm_ops"), "seq") == list(range(60, 100))


def test_a_late_reader_does_not_read_old_files(root: str, clock: Clock, got: list[str]) -> None:
    job = job_location(root, "long")
    run(JobWriter(job, "host-0", clock=clock), clock, 0, 1800)

    window = JobReader(job.url, HALF_A_MINUTE).refresh()

    assert values(window.table("steps"), "step") == list(range(1769, 1800))
    assert 1 <= len(got) <= 4, "of a file a minute, two minutes before and after"


def test_a_folder_that_grows_for_long_is_followed_at_the_same_cost(
    root: str, clock: Clock, got: list[str]
) -> None:
    job = job_location(root, "long")
    writer = JobWriter(job, "host-0", clock=clock)
    reader = JobReader(job.url, HALF_A_MINUTE)
    costs = []
    for minute in range(24):
        run(writer, clock, minute * 60, 60)
        got.clear()
        window = reader.refresh()
        newest = minute * 60 + 59
        assert values(window.table("steps"), "step") == list(range(newest - 30, newest + 1))
        costs.append(len(got))
    assert max(costs) <= 2, "what came since the last look"
    assert reader.files_held <= 8


def test_a_compactor_beside_a_follower_loses_and_duplicates_nothing(
    job: Location, writer: JobWriter, clock: Clock
) -> None:
    reader = JobReader(job.url, HALF_A_MINUTE)
    for minute in range(20):
        run(writer, clock, minute * 60, 60)
        compact(job, quiet_s=0.0, now_s=clock.now_s)
        newest = minute * 60 + 59
        found = values(reader.refresh().table("steps"), "step")
        assert found == list(range(newest - 30, newest + 1))
