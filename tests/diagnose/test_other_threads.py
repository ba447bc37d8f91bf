"""A training thread that waits for another thread of its process."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import diagnose
from stepscope.window import Strings, Window

from .jobs import Fault, a_job, both, put, with_samples

GET = "get (/usr/lib/python3.11/queue.py:171)"
PUT = "put (/usr/lib/python3.11/queue.py:140)"
READ = "read (tar.py:11)"
SLOW = 2


def with_thread(job: Window, name: str, works: Mapping[int, str]) -> Window:
    """The job in which each of these ranks has another thread, and what that one always does."""
    stacks = job.tables["stacks"]
    for rank, frame in works.items():
        own = job.tables["stacks"].take(job.tables["stacks"].ints("rank") == rank)
        own = own.with_column("thread", Strings.of([name] * len(own)))
        own = own.with_column("frames", Strings.of([f"run (tar.py:2);{frame}"] * len(own)))
        stacks = both(stacks, own)
    return put(job, stacks=stacks)


def the_verdict(job: Window) -> Verdict:
    (verdict,) = diagnose(job).verdicts
    return verdict


def waiting(frame: str) -> Window:
    """Rank 2 waits in a frame in each forward pass."""
    function = f"next_batch (train.py:30);{frame}"
    late = Fault((SLOW,), "forward-compute", 0, ms=60, computes=False, function=function)
    return a_job(faults=[late])


def test_a_thread_that_does_not_keep_up_with_its_queue_is_named() -> None:
    works = {rank: READ if rank == SLOW else PUT for rank in range(4)}
    verdict = the_verdict(with_thread(waiting(GET), "prefetch", works))
    assert (verdict.ranks, verdict.cause, verdict.function) == ((SLOW,), "host", READ)
    assert any("waits for thread prefetch" in one.detail for one in verdict.evidence)


def test_a_thread_that_computes_is_named_for_what_it_holds_up() -> None:
    """Everything takes longer that needs the GIL; the training thread itself computes no more."""
    late = Fault((SLOW,), "forward-compute", 0, ms=60, computes=False)
    job = with_thread(a_job(faults=[late]), "metrics", {SLOW: "metrics_loop (train.py:80)"})
    busy = with_samples(job, "cpu_util", lambda rank, time: 1.2 if rank == SLOW else 0.6)
    assert the_verdict(busy).function == "metrics_loop (train.py:80)"
    ours = with_thread(a_job(faults=[late]), "GIL: stepscope-profile", {SLOW: "_run (ours.py:80)"})
    ours = with_samples(ours, "cpu_util", lambda rank, time: 1.2 if rank == SLOW else 0.6)
    assert the_verdict(ours).function != "_run (ours.py:80)", "nobody has to look for it"
    idle = with_samples(job, "cpu_util", lambda rank, time: 0.3 if rank == SLOW else 0.6)
    assert the_verdict(idle).function != "metrics_loop (train.py:80)"


def test_a_thread_that_does_the_same_everywhere_is_no_reason() -> None:
    verdict = the_verdict(with_thread(waiting(GET), "prefetch", dict.fromkeys(range(4), READ)))
    assert verdict.function == "next_batch (train.py:30)"
