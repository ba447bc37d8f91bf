"""One job out of many hosts' fragments."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.store import JobReader, JobWriter, Location
from stepscope.store.fragments import rebuild
from stepscope.trace import Fabric, Host, Job, ProcessGroup, Schedule, Switch
from stepscope.trace.merging import merge_jobs


def fragment(number: int, **more: object) -> Job:
    ranks = (2 * number, 2 * number + 1)
    return Job("job-1", 2 * number + 2, hosts=(Host(f"host-{number}", ranks),), **more)  # type: ignore[arg-type]


def test_each_host_adds_its_own() -> None:
    first = fragment(
        0,
        parallelism={"tp": 2},
        groups=(ProcessGroup("tp-0", "tp", (0, 1)), ProcessGroup("pp-0", "pp", (3, 1))),
        schedule=Schedule("1f1b", 8),
        fabric=Fabric((Switch("leaf-0", 0, ("host-0/nic-0",)),)),
        observed_until_ns=5,
    )
    second = fragment(
        1,
        parallelism={"pp": 2},
        groups=(ProcessGroup("tp-1", "tp", (2, 3)), ProcessGroup("pp-0", "pp", (3,))),
        fabric=Fabric((Switch("leaf-0", 0, ("host-1/nic-0",)),)),
        observed_until_ns=7,
    )

    assert merge_jobs([first, second]) == Job(
        "job-1",
        4,
        hosts=(Host("host-0", (0, 1)), Host("host-1", (2, 3))),
        parallelism={"pp": 2, "tp": 2},
        groups=(
            ProcessGroup("pp-0", "pp", (3, 1)),
            ProcessGroup("tp-0", "tp", (0, 1)),
            ProcessGroup("tp-1", "tp", (2, 3)),
        ),
        schedule=Schedule("1f1b", 8),
        fabric=Fabric((Switch("leaf-0", 0, ("host-0/nic-0", "host-1/nic-0")),)),
        observed_until_ns=7,
    )


def test_the_uuids_of_gpus_stay_with_their_host() -> None:
    host = Host("host-0", (0, 1), (), ("gpu-0", "gpu-1"), ("GPU-3f", "GPU-4a"))
    job = Job.from_json(Job("job-1", 2, hosts=(host,)).to_json())
    assert merge_jobs([job, fragment(0)]).hosts == (host,)


def test_a_host_that_records_everything_stays_recorded() -> None:
    partial = fragment(1, recorded_ranks=(2,))
    assert merge_jobs([fragment(0), partial]).recorded_ranks == (0, 1, 2)
    assert merge_jobs([fragment(0)]).recorded_ranks is None


ranks = st.lists(st.integers(0, 9), max_size=4, unique=True).map(tuple)
names = st.sampled_from(["a", "b", "c"])
jobs = st.builds(
    Job,
    job_id=names,
    world_size=st.integers(0, 9),
    hosts=st.lists(st.builds(Host, names, ranks), max_size=3).map(tuple),
    parallelism=st.dictionaries(names, st.integers(1, 9)),
    groups=st.lists(
        st.builds(ProcessGroup, names, st.sampled_from(["tp", "dp"]), ranks), max_size=3
    ).map(tuple),
    schedule=st.none() | st.builds(Schedule, names, st.integers(1, 3)),
    fabric=st.none()
    | st.builds(Fabric, st.lists(st.builds(Switch, names, st.just(0), st.just(("x",)))).map(tuple)),
    recorded_ranks=st.none() | ranks,
    observed_until_ns=st.none() | st.integers(0, 9),
)


@given(st.lists(jobs, min_size=1, max_size=3))
def test_neither_order_nor_repetition_matters(fragments: list[Job]) -> None:
    merged = merge_jobs(fragments)
    for order in itertools.permutations(fragments):
        assert merge_jobs(order) == merged
    assert merge_jobs([*fragments, *fragments]) == merged
    assert merge_jobs([merged]) == merged


def test_hosts_that_join_at_once_are_all_in_the_description(job: Location) -> None:
    writers = [JobWriter(job, f"host-{number}") for number in range(8)]
    for number, writer in enumerate(writers):
        writer.write_job(fragment(number))
    threads = [threading.Thread(target=writer.flush) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    described = Job.from_json(json.loads((Path(job.url) / "job.json").read_bytes()))
    assert described == merge_jobs([fragment(number) for number in range(8)])
    assert JobReader(job.url).refresh().job == described


def test_a_slow_host_does_not_undo_what_another_wrote_meanwhile(
    job: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = JobWriter(job, "host-0"), JobWriter(job, "host-1")
    slow.write_job(fragment(0))
    quick.write_job(fragment(1))
    put = Location.put

    def overtaken(self: Location, path: str, data: bytes) -> None:
        if path == "job.json":
            monkeypatch.undo()
            quick.flush()
        put(self, path, data)

    monkeypatch.setattr(Location, "put", overtaken)
    slow.flush()

    assert JobReader(job.url).refresh().job == merge_jobs([fragment(0), fragment(1)])
    assert (Path(job.url) / "job.json").read_text().count("host-") == 2


def test_a_host_that_changes_its_mind_is_believed(job: Location) -> None:
    writer = JobWriter(job, "host-0")
    for number in (3, 5):
        writer.write_job(Job("job-1", 8, hosts=(Host("host-0", (number,)),)))
        writer.flush()

    assert JobReader(job.url).refresh().job.hosts == (Host("host-0", (5,)),)


def test_a_time_that_moves_on_reaches_readers_without_a_rebuild(job: Location) -> None:
    writer = JobWriter(job, "host-0")
    for moment in (1, 2):
        writer.write_job(fragment(0, observed_until_ns=moment))
        writer.flush()

    assert '"observed_until_ns": 1' in (Path(job.url) / "job.json").read_text()
    assert JobReader(job.url).refresh().job.observed_until_ns == 2
    writer.close()
    assert '"observed_until_ns": 2' in (Path(job.url) / "job.json").read_text()


def test_a_broken_fragment_does_not_keep_the_others(job: Location) -> None:
    job.put("topology/broken.json", b"{")
    writer = JobWriter(job, "host-0")
    writer.write_job(fragment(0))
    assert writer.flush().ok
    rebuild(job)

    reader = JobReader(job.url)
    assert reader.refresh().job == fragment(0)
    assert reader.problems[0].startswith("topology/broken.json: is not a job description")
