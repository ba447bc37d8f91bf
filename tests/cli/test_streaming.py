"""A simulated job that writes its folder as the processors of its hosts would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from stepscope.cli.recorders import Recorders
from stepscope.cli.streaming import StoreSink, stream
from stepscope.errors import StoreError
from stepscope.simulate.live import Slice
from stepscope.store import JobReader, Location
from stepscope.trace import Host, Job
from stepscope.window import Strings, Table

SECOND_NS = 1_000_000_000
JOB = Job("live", 8, tuple(Host(f"host-{n}", (2 * n, 2 * n + 1)) for n in range(4)))


def steps(number: int, ranks: int = 8) -> Table:
    rank = np.arange(ranks)
    return Table({"rank": rank, "step": np.full(ranks, number),
                  "start_ns": np.full(ranks, number * SECOND_NS),
                  "duration_ns": np.full(ranks, SECOND_NS)})  # fmt: skip


def one_per_second(count: int) -> Iterator[Slice]:
    for number in range(count):
        yield Slice((number + 1) * SECOND_NS, {"steps": steps(number)})


@dataclass
class Slow:
    """A sink that needs some time for each slice, on a clock of its own."""

    takes_ns: int
    now_ns: int = 0
    taken: list[int] = field(default_factory=list)

    def clock(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)

    def take(self, one: Slice, due_ns: int) -> None:
        self.taken.append(self.now_ns)
        self.now_ns += self.takes_ns

    def close(self) -> None:
        """Nothing is held."""


def recorders(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "steps").iterdir())


@pytest.mark.parametrize(("count", "names"), [(None, 4), (3, 3), (9, 4), (1, 1)])
def test_each_processor_has_files_of_its_own(tmp_path: Path, count: int | None, names: int) -> None:
    sink = StoreSink(JOB, Location.parse(str(tmp_path / "job")), count, 1.0)
    sink.take(Slice(SECOND_NS, {"steps": steps(0)}), SECOND_NS)
    sink.close()
    assert len(recorders(tmp_path / "job")) == names
    assert JobReader(str(tmp_path / "job")).refresh().tables["steps"].ints("rank").tolist() == [
        *range(8)
    ]


def test_rows_wait_for_the_next_flush(tmp_path: Path) -> None:
    sink = StoreSink(JOB, Location.parse(str(tmp_path / "job")), None, 5.0)
    seen = []
    for one in one_per_second(12):
        sink.take(one, 10**18 + one.until_ns)
        seen.append(len(JobReader(str(tmp_path / "job")).refresh().tables["steps"]) // 8)
    assert seen == [1] * 5 + [6] * 5 + [11] * 2
    sink.close()
    assert len(JobReader(str(tmp_path / "job")).refresh().tables["steps"]) == 12 * 8


def test_no_row_is_lost_however_many_come_at_once(tmp_path: Path) -> None:
    sink = StoreSink(JOB, Location.parse(str(tmp_path / "job")), 1, 1.0)
    many = 300_000
    table = steps(0).take(np.zeros(many, np.intp))
    sink.take(Slice(SECOND_NS, {"steps": table}), SECOND_NS)
    tables = JobReader(str(tmp_path / "job")).refresh().tables
    assert len(tables["steps"]) == many and "losses" not in tables


def test_rows_of_hosts_go_with_their_host() -> None:
    names = Strings(np.array([0, 1, -1], np.int32), ("host-3", "host-1"))
    table = Table({"rank": np.array([-1, -1, 5]), "host": names})
    parts = dict(Recorders(JOB, 2).split(table))
    assert parts[0].strings("host").values == ("host-1",), "no words of others"
    assert sorted(parts[1].ints("rank").tolist()) == [-1, 5]


def test_a_machine_that_is_too_slow_is_noticed() -> None:
    quick, slow = Slow(SECOND_NS // 2), Slow(3 * SECOND_NS // 2)
    assert stream(one_per_second(5), quick, 0, quick.clock, quick.sleep) == 0
    assert stream(one_per_second(5), slow, 0, slow.clock, slow.sleep) == 2 * SECOND_NS
    assert len(slow.taken) == 5


def test_ctrl_c_ends_the_stream_and_returns_its_delay() -> None:
    slow = Slow(3 * SECOND_NS // 2)

    def until_pressed() -> Iterator[Slice]:
        yield from one_per_second(3)
        raise KeyboardInterrupt

    assert stream(until_pressed(), slow, 0, slow.clock, slow.sleep) == SECOND_NS


def test_a_folder_that_cannot_be_written_ends_it(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("a file", encoding="utf-8")
    with pytest.raises(StoreError):
        StoreSink(JOB, Location.parse(str(tmp_path / "job")), None, 1.0)
