"""Profiles of some steps: which request each rank here gets, and what its reply means.

Ranks count optimizer calls, the processor counts steps. An order names steps, so each rank is asked
for the ordinals of these steps on that rank, and its reply is converted back.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.processor.instructions import RankProfiled
from stepscope.wire.profiling import Profiled, RankProfile, encode_profile

if TYPE_CHECKING:
    from stepscope.processor.state.host_state import HostState
    from stepscope.processor.state.producer import Producer

AT_ONCE = -1
"""The first ordinal, or step, of a window that begins at once."""


def requests_for(
    state: HostState, job: str, first_step: int, last_step: int, ranks: Collection[int],
    seconds: float, window: str, folder: Path,
) -> list[tuple[int, bytes]]:  # fmt: skip
    """What to send to the ranks of a job on this host, so that they profile the same steps.

    Args:
        state: what the processor knows.
        job: the job.
        first_step: the first step of the window; negative: it begins at once.
        last_step: the last one.
        ranks: which ranks; none: all.
        seconds: each window ends after this time in any case.
        window: its name.
        folder: where ranks write their traces, in a folder of the window.

    Returns:
        Connections, and the payload of the CONTROL packet for each.
    """
    return [
        (at, encode_profile(_request(producer, first_step, last_step, seconds, window, folder)))
        for at, producer in state.producers.items()
        if producer.hello.job == job
        and not producer.is_native
        and (not ranks or producer.rank in ranks)
    ]


def trace_path(folder: Path, window: str, rank: int) -> Path:
    """Where a rank writes the trace of a window."""
    return folder / window / f"rank{rank}.json.gz"


def profiled(producer: Producer, reply: Profiled) -> RankProfiled:
    """A rank's reply as an instruction, with steps in place of ordinals."""
    hello = producer.hello
    first, last = producer.step_of(reply.first_ordinal), producer.step_of(reply.last_ordinal)
    return RankProfiled(hello.job, hello.host, hello.rank, hello.pid, reply, first, last)


def _request(
    producer: Producer, first_step: int, last_step: int, seconds: float, window: str, folder: Path
) -> RankProfile:
    first, _ = (AT_ONCE, AT_ONCE) if first_step < 0 else producer.ordinals_of(first_step)
    _, last = (AT_ONCE, AT_ONCE) if last_step < 0 else producer.ordinals_of(last_step)
    path = trace_path(folder, window, producer.rank)
    sequence = producer.tracker.sequence
    per_step = 1 if sequence is None else sequence.optimizer_steps
    return RankProfile(window, first, max(first, last), seconds, str(path), per_step)
