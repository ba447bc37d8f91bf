"""`stepscope profile`: all ranks of a running job profile the same steps, now.

The command writes an order into the job folder; the processors of all hosts look for orders there
and pass them on. It needs no connection to any host.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.cli import exits, terminal
from stepscope.errors import StoreError, UsageError
from stepscope.wire.profiling import LONGEST_SECONDS, ProfileOrder, encode_order, order_name

if TYPE_CHECKING:
    from stepscope.store.reader import JobReader
    from stepscope.window import Window

LEAD_SECONDS = 15.0
"""The first step is at least this far ahead: a step is stored up to 5 s after its end, and
processors look for orders every few seconds. Our choice."""
SECONDS = 20.0
"""The length of a profiling window of EROICA (section 4.1): the least time limit."""
SLACK = 5.0
"""A window may take this many times as long as its steps usually do: profiling slows them down."""
_RECENT = 50
"""Steps that the usual duration is taken from; N of EROICA."""
_GRACE_SECONDS = 90.0
"""Added to the time in which results must appear: traces are written and summarised first."""
_LOOK_SECONDS = 1.0
_ASLEEP_SECONDS = 60.0
"""A job whose last step is older than this, and than ten steps, does not seem to run."""
_ASLEEP_STEPS = 10


def register(app: typer.Typer) -> None:
    app.command("profile")(profile)


def profile(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job folder: a folder or s3://….")],
    steps: Annotated[int, typer.Option(min=1, help="How many steps to profile.")] = 20,
    ranks: Annotated[
        str | None,
        typer.Option(metavar="RANKS", help="Which ranks, like 0-7,12 [default: all]."),
    ] = None,
    start: Annotated[
        int | None,
        typer.Option(metavar="STEP", min=0, help="The first step [default: in 15 seconds]."),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the results are stored.")] = True,
) -> int:
    """Have all ranks of a running job profile the same steps with `torch.profiler`.

    Each host then summarizes its ranks' traces; `stepscope diagnose JOB` names the functions that
    are slow, and the ranks on which they are.
    """
    from stepscope.report.units import span

    # importing numpy starts one OpenBLAS thread per core; nothing here uses them
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from stepscope.store.reader import JobReader

    chosen = () if ranks is None else ranks_of(ranks)
    reader = JobReader(job, wanted=("steps", "patterns", "profiles"))
    progress = progress_of(reader.refresh(), time.time_ns())
    order = order_for(progress, steps, start, chosen, time.time_ns())
    reader.location.put(order_name(order.window), encode_order(order))
    exits.print_stderr(f"asked for {span((order.first_step, order.last_step))} of {job}")
    if not wait:
        return 0
    return _await(reader, order, job, progress)


@dataclass(frozen=True)
class Progress:
    """How far a job is, as far as it is stored."""

    step: int
    """The step that it should be in now."""
    step_ns: float
    """How long a step takes."""
    ranks: frozenset[int]


def ranks_of(text: str) -> tuple[int, ...]:
    """The ranks in `0-7,12`.

    Raises:
        UsageError: it is something else.
    """
    found: set[int] = set()
    for word in text.split(","):
        first, dash, last = word.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < 1 << 24):
            raise UsageError(f"--ranks {text}: expected ranks like 0-7,12")
        found.update(range(int(first), int(last) + 1))
    return tuple(sorted(found))


def progress_of(window: Window, now_ns: int) -> Progress:
    """How far a job is now, from its stored steps.

    Raises:
        UsageError: it has no steps, or has ended.
    """
    import numpy as np

    table = window.table("steps")
    if table is None or not len(table):
        raise UsageError("the job has no steps yet; try again when it trains")
    start, duration, step = (table.ints(c) for c in ("start_ns", "duration_ns", "step"))
    last = int(np.argmax(start + duration))
    recent = duration[step > int(step[last]) - _RECENT]
    step_ns = max(float(np.median(recent)), 1.0)
    silent_ns = now_ns - int(start[last] + duration[last])
    if silent_ns > max(_ASLEEP_SECONDS * 1e9, _ASLEEP_STEPS * step_ns):
        raise UsageError(
            f"the job's last step ended {silent_ns / 1e9:,.0f} s ago; only a job that trains can be"
            " profiled"
        )
    here = int(step[last]) + 1 + max(int(silent_ns / step_ns), 0)
    return Progress(here, step_ns, frozenset(np.unique(table.ints("rank")).tolist()))


def order_for(
    progress: Progress, steps: int, start: int | None, ranks: tuple[int, ...], now_ns: int
) -> ProfileOrder:
    """The order for some steps of a job.

    Raises:
        UsageError: the job has passed the first step, or has none of the ranks.
    """
    if start is not None and start <= progress.step:
        raise UsageError(f"--start {start}: the job is in step {progress.step} already")
    missing = set(ranks) - progress.ranks
    if missing:
        raise UsageError(f"--ranks: the job has no rank {min(missing)}")
    first = progress.step + math.ceil(LEAD_SECONDS * 1e9 / progress.step_ns)
    first = first if start is None else start
    seconds = max(SECONDS, SLACK * steps * progress.step_ns / 1e9)
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_ns / 1e9))
    return ProfileOrder(
        window=f"{moment}-user-{first}", first_step=first, last_step=first + steps - 1,
        ranks=ranks, seconds=min(seconds, LONGEST_SECONDS), why="user", asked_ns=now_ns,
    )  # fmt: skip


def _await(reader: JobReader, order: ProfileOrder, job: str, progress: Progress) -> int:
    """Waits until every rank's patterns are stored; says what to do next."""
    from stepscope.report.units import count

    wanted = len(order.ranks or progress.ranks)
    ahead_seconds = (order.first_step - progress.step) * progress.step_ns / 1e9
    until = time.monotonic() + ahead_seconds + order.seconds + _GRACE_SECONDS
    with terminal.count_progress("ranks with results") as advance:
        come = _come(reader, order, wanted, until, advance)
    troubles = troubles_of(reader.refresh(), order)
    for rank, trouble in sorted(troubles.items()):
        exits.print_stderr(f"rank {rank}: {trouble}")
    if come == 0 and troubles:
        raise StoreError(f"no rank has profiled {order.window}; the reasons are above")
    if come == 0:
        raise StoreError(
            f"no results of {order.window} after {ahead_seconds + order.seconds:,.0f} s; the"
            " processors' logs say why (stepscope processor)"
        )
    typer.echo(f"{come} of {count(wanted, 'rank')} profiled; next: stepscope diagnose {job}")
    return 0


def _come(
    reader: JobReader, order: ProfileOrder, wanted: int, until: float,
    advance: Callable[[int, int], None] | None,
) -> int:  # fmt: skip
    come, wanted_before = 0, wanted
    while come < wanted and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        window = reader.refresh()
        come = profiled_ranks(window, order)
        wanted = min(wanted, wanted_before - len(troubles_of(window, order)))
        if advance is not None:
            advance(come, wanted)
    return come


def troubles_of(window: Window, order: ProfileOrder) -> dict[int, str]:
    """Why ranks have no patterns of the order's steps, by rank."""
    table = window.table("profiles")
    if table is None:
        return {}
    table = table.take(table.strings("window").equals(order.window))
    troubles = table.strings("trouble")
    ranks = enumerate(table.ints("rank").tolist())
    return {rank: text for row, rank in ranks if (text := troubles[row]) is not None}


def profiled_ranks(window: Window, order: ProfileOrder) -> int:
    """How many ranks have patterns of the order's steps."""
    table = window.table("patterns")
    if table is None or not table.has("first_step", "last_step"):
        return 0
    first, last = table.ints("first_step"), table.ints("last_step")
    of_it = (first >= order.first_step) & (last <= order.last_step)
    return len(set(table.ints("rank")[of_it].tolist()))
