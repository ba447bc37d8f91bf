"""Sentences about slow steps that recur at regular distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepscope.diagnose.shown import Period, Source
from stepscope.diagnose.words.advice import name_ranks
from stepscope.diagnose.words.numbers import duration

ADVICE: Mapping[Source, str] = {
    "checkpoint": "save less often, or asynchronously (`torch.distributed.checkpoint.async_save`), "
    "to a disk of the host first",
    "evaluation": "evaluate less often, or on fewer samples",
    "garbage collection": "call `gc.freeze()` after the first step and `gc.disable()`, then "
    "collect on all ranks at the same step every few hundred steps",
    "compilation": "find what recompiles (`TORCH_LOGS=recompiles`), and mark changing shapes as "
    "dynamic or pad them",
    "data loading": "look at what the loader does at this distance: the end of a shard or an "
    "epoch, a buffer that is filled, workers that start (`persistent_workers=True`)",
    "NCCL heartbeat": "give NCCL's monitoring thread a longer interval "
    "(`TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC`), and find out why it holds the training thread up",
    "other processes": "find what the host starts at these times (`crontab -l`, "
    "`systemctl list-timers`, monitoring agents), and move it to other cores or other times",
    "other processes on GPUs": "find what computes on these devices at these times "
    "(`nvidia-smi pmon`), and move it",
    "busy processors": "find the other processes on the processors of the ranks (`top`, "
    "`pidstat -t 1`) and move them, or reserve cores for training with a cpuset",
    "too few processors": "give the ranks more processors (`taskset -p`, `cpu.max`), or run fewer "
    "ranks, loader workers and threads (`OMP_NUM_THREADS`) on this host",
    "a function": "call {function} less often, or beside training",
    "unknown source": "profile one of these steps (`stepscope profile`), and compare with timers "
    "of the host (`crontab -l`, `systemctl list-timers`) and intervals of the script",
}


PLACES = {
    "outside-phases": "before or after the phases of a step",
    "between-phases": "between phases",
    "between-collectives": "between operators",
}
"""Where the time of a step is that is in no phase (`views.unnamed`)."""


def place(phase: str | None) -> str:
    """` in optimizer`, or where time is that is in no phase; empty if that is not known.

    >>> place("optimizer"), place("between-phases"), place(None)
    (' in optimizer', ' between phases', '')
    """
    if phase is None:
        return ""
    return f" {PLACES[phase]}" if phase in PLACES else f" in {phase}"


def taking(ranks: Sequence[int]) -> str:
    """`rank 3 takes`, `ranks 3 and 5 take`; of no ranks, `steps take`."""
    if not ranks:
        return "steps take"
    return f"{name_ranks(ranks)} {'takes' if len(ranks) == 1 else 'take'}"


def sentence(one: Period) -> str:
    """`every 50 steps, steps take 312 ms longer in optimizer (12 of 12 times from step 49)`."""
    where, who = place(one.phase), taking(one.ranks)
    times = f"{one.hits} of {one.slots} times from step {one.steps[0]}"
    return f"{distance(one)}, {who} {duration(one.excess_ns)} longer{where} ({times})"


def summary(one: Period) -> str:
    """The same with the source."""
    return f"{sentence(one)}: {one.source}"


def distance(one: Period) -> str:
    """`every 50 steps`, `every 60.0 s`; with the other unit where that fits as well."""
    if one.unit == "seconds":
        other = "" if one.either is None else f" (or every {one.either:.0f} steps)"
        return f"every {one.every:.3g} s{other}"
    other = "" if one.either is None else f" (or every {one.either:.3g} s)"
    return f"every {one.every:.0f} steps{other}"


def advice(one: Period) -> str:
    """What to do next about it."""
    return ADVICE[one.source].format(function=one.function or "it")
