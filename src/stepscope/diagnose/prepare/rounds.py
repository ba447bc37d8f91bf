"""Steps of a call log in which no step ends: the calls of each rank repeat, round by round.

The length of a round is the lag at which a rank's calls (operator, kind of group, bytes) resemble
themselves most. Among the calls that all ranks make equally often in a round, the rarest ends a
step: a loss, a norm, an optimizer's gather. Its own numbers count the steps, so that logs may begin
and end at different places, and calls in between (a checkpoint's barrier) shift nothing.
Sizes may differ from step to step (tokens of an expert, lengths of sequences) and calls of several
groups may change places (equal times on a coarse clock): if no lag is found, sizes do not count,
and if still none is found, a step ends with the rarest common call if the same calls lie between
any two of them, in whatever order.
Cost: one sort of the calls, and one transform per different sequence. Cannot see: jobs in which no
call is common to all ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from stepscope.diagnose.finding import Skipped
from stepscope.diagnose.prepare.matching import POINT_TO_POINT, kinds_and_operators
from stepscope.window import NULL, Floats, Ints, Mask, Table, Window, first_rows, numbered

FINER = ("phases", "host_ops")
"""What comes with steps of its own: a trace of one step, whose layers resemble each other."""
FEW_STEPS = 2
"""Numbers of steps in a job whose steps were not recorded: the first, and one that was begun. Our
choice."""
LEAST_ROUNDS = 10
"""Rounds that a log must contain: fewer that resemble each other may be layers. As the processor's
rule for steps, and too few to judge anyway."""
MOST_UNLIKE = 0.05
"""Part of the calls that may differ from those one round later: evaluations and checkpoints come in
between. Our choice."""
NEARLY = 0.01
"""By how much more calls may differ than at the best lag. Our choice: as an evaluation or two in a
hundred steps."""
MOST_ROUNDS = 64
"""Equal calls that a step may consist of. Our choice: DDP's buckets, of 400 million parameters."""
SIMILAR = 1.25
"""Pauses repeat as well as at the best distance, if they differ by so many times as much. Our
choice: the scatter of pauses from log to log."""
NOTE = Skipped("steps", "not recorded; the rounds in which each rank's calls repeat are counted "
               "instead")  # fmt: skip


def with_rounds(window: Window) -> tuple[Window, tuple[Skipped, ...]]:
    """The window with `step` of calls, and a note; the same window where steps are known, or not to
    be seen."""
    comm = window.table("comm_ops")
    if comm is None or not len(comm) or not _is_log(window, comm) or _has_steps(window):
        return window, ()
    step = round_of_calls(window)
    if step is None:
        return window, ()
    comm = comm.with_column("step", step)
    tables = {**window.tables, "comm_ops": comm}
    kernels = window.table("kernels")
    if kernels is not None and len(kernels) and comm.has("end_ns"):
        tables["kernels"] = kernels.with_column("step", _by_last_ends(kernels, comm))
    if "pauses" in tables:  # their process counted no steps; their times tell
        columns = tables["pauses"].columns
        tables["pauses"] = Table({name: columns[name] for name in columns if name != "step"})
    return Window(window.job, tables), (NOTE,)


def _by_last_ends(kernels: Table, comm: Table) -> Ints:
    """The step of each kernel: the first whose last operator ended on its rank after it began."""
    ended, began, step = comm.ints("end_ns"), kernels.ints("start_ns"), np.full(len(kernels), NULL)
    calls = _by_rank(comm.ints("rank"), np.flatnonzero(ended != NULL))
    rows = _by_rank(kernels.ints("rank"), np.arange(len(kernels)))
    for rank in calls.keys() & rows.keys():
        at = comm.ints("step")[calls[rank]]
        ends = np.zeros(int(at.max()) + 1, np.int64)
        np.maximum.at(ends, at, ended[calls[rank]])
        step[rows[rank]] = np.searchsorted(np.maximum.accumulate(ends), began[rows[rank]])
    return step


def _by_rank(rank: Ints, rows: Ints) -> dict[int, Ints]:
    """The given rows of each rank."""
    order = rows[np.argsort(rank[rows], kind="stable")]
    begins = np.flatnonzero(np.diff(rank[order], prepend=-1))
    return dict(zip(rank[order[begins]].tolist(), np.split(order, begins[1:]), strict=False))


def round_of_calls(window: Window) -> Ints | None:
    """The number of the round of each row of `comm_ops`; None if rounds are not to be seen."""
    comm = window.table("comm_ops")
    if comm is None or not len(comm):
        return None
    by_rank, unsized = _calls_by_rank(comm), kinds_and_operators(window, comm)
    sized = numbered(unsized, comm.ints("bytes")) if comm.has("bytes") else unsized
    for token in (sized, unsized):
        if (step := _rounds(comm, by_rank, token)) is not None:
            return step
    return _between_equals(comm, by_rank, unsized)


def _is_log(window: Window, comm: Table) -> bool:
    """Whether operators, and maybe kernels, are all there is, and no dump of the newest ones."""
    return not comm.has("seen") and not any(name in window.tables for name in FINER)


def _has_steps(window: Window) -> bool:
    """Whether any table says when steps were. A recorder that sees no step end counts none: its
    calls are all of the first one, or of the one after it."""
    for name, first in (("steps", 0), ("phases", 0), ("kernels", 0), ("comm_ops", FEW_STEPS)):
        table = window.table(name)
        if table is not None and table.has("step") and bool((table.ints("step") >= first).any()):
            return True
    return False


def _calls_by_rank(comm: Table) -> list[Ints]:
    """The rows of each rank, in the order of its calls."""
    order = np.lexsort((comm.ints("seq"), comm.ints("enqueue_ns"), comm.ints("rank")))
    begins = np.flatnonzero(np.diff(comm.ints("rank")[order], prepend=-1))
    return np.split(order, begins[1:])


def _rounds(comm: Table, by_rank: Sequence[Ints], token: Ints) -> Ints | None:
    """The number of the round of each row; None if rounds are not to be seen."""
    known: dict[bytes, int] = {}
    lengths = []
    for rows in by_rank:
        calls = token[rows]
        said = calls.tobytes()
        length = known[said] if said in known else known.setdefault(said, _length(calls))
        if not length:
            return None
        lengths.append(length)
    pairs = set(token[comm.strings("op").equals(*POINT_TO_POINT)].tolist())
    often = [
        _in_a_round(token[rows], length) for rows, length in zip(by_rank, lengths, strict=True)
    ]
    last = _common(often, pairs)
    if last is None:
        return None
    call, count = last
    pauses = [_pauses(comm.ints("enqueue_ns")[rows]) for rows in by_rank]
    return _counted(
        comm, by_rank, pauses, token == call, count * _rounds_in_a_step(pauses, lengths)
    )


def _between_equals(comm: Table, by_rank: Sequence[Ints], token: Ints) -> Ints | None:
    """The number of the round of each row, if each rank makes the same calls between any two of the
    rarest one that all ranks make; None otherwise."""
    counts = [np.bincount(token[rows], minlength=int(token.max()) + 1) for rows in by_rank]
    paired = comm.strings("op").equals(*POINT_TO_POINT)
    common = np.min(counts, axis=0)
    common[token[paired]] = 0
    common[common != np.max(counts, axis=0)] = 0
    often = np.flatnonzero(common >= LEAST_ROUNDS)
    if not often.size:
        return None
    rarest = int(often[np.argmin(common[often])])
    if not all(_is_alike(token[rows], rarest) for rows in by_rank):
        return None
    pauses = [_pauses(comm.ints("enqueue_ns")[rows]) for rows in by_rank]
    return _counted(comm, by_rank, pauses, token == rarest, 1)


def _is_alike(calls: Ints, rarest: int) -> bool:
    """Whether the same calls, and several, lie between any two calls of one kind. (One that is in
    the wrong place is missing in one of the pieces, and too many in another.)"""
    piece = np.cumsum(calls == rarest)
    inner = (piece > 0) & (piece < piece[-1])
    kinds = int(calls.max()) + 1
    made = np.bincount((piece[inner] - 1) * kinds + calls[inner], minlength=(piece[-1] - 1) * kinds)
    made = made.reshape(-1, kinds)
    usual = np.median(made, axis=0)
    differ = np.abs(made - usual).sum()
    return bool((usual > 0).sum() > 1 and differ <= 2 * MOST_UNLIKE * made.sum())


def _pauses(called_ns: Ints) -> Floats:
    """The time from each call of a rank to its next, as a logarithm; the last one's is unknown."""
    return np.append(np.log(np.maximum(np.diff(called_ns), 1000)), np.nan)


def _rounds_in_a_step(pauses: Sequence[Floats], lengths: Sequence[int]) -> int:
    """How many rounds of equal calls make a step: as many as it takes for pauses to repeat.

    Buckets may all be equal: only that the next forward pass comes after the fourth shows a step.
    """
    unlike = []
    for times in range(1, MOST_ROUNDS + 1):
        apart = [_apart(one, times * lag) for one, lag in zip(pauses, lengths, strict=True)]
        if not np.isfinite(apart).all():
            break
        unlike.append(float(np.mean(apart)))
    near = np.flatnonzero(np.array(unlike) <= SIMILAR * min(unlike, default=0.0))
    return int(near[0]) + 1 if near.size else 1


def _length(calls: Ints) -> int:
    """After how many calls they repeat; 0: they do not.

    Layers repeat within a step and steps between two checkpoints. Of the lags at which nearly as
    much repeats as at the best, the shortest counts at which a round has every regular call.
    """
    most = len(calls) // LEAST_ROUNDS
    if most < 1:
        return 0
    regular = _regular(calls)
    same = sum((_alike(calls == one, most) for one in np.unique(calls)), np.zeros(most))
    unlike = 1.0 - np.rint(same) / (len(calls) - np.arange(1, most + 1))
    for lag in np.flatnonzero(unlike <= min(unlike.min() + NEARLY, MOST_UNLIKE)) + 1:
        if np.isin(regular, calls[(len(calls) - lag) // 2 :][:lag]).all():
            return int(lag)
    return 0


def _regular(calls: Ints) -> Ints:
    """The calls that occur all the time, unlike those of checkpoints and evaluations."""
    parts = np.array_split(calls, LEAST_ROUNDS)
    kinds, count = np.unique(np.concatenate([np.unique(part) for part in parts]),
                             return_counts=True)  # fmt: skip
    return kinds[count >= len(parts) - 1]


def _alike(there: Ints, most: int) -> Floats:
    """How often the call is there and again 1 to `most` calls later."""
    wide = 1 << int(2 * len(there) - 1).bit_length()
    turned = np.fft.rfft(there.astype(np.float64), wide)
    return np.asarray(np.fft.irfft(turned * turned.conj(), wide)[1 : most + 1])


def _in_a_round(calls: Ints, length: int) -> dict[int, int]:
    """How often a rank makes each call in a round: in the middle of its log."""
    first = (len(calls) - length) // 2
    kinds, counts = np.unique(calls[first : first + length], return_counts=True)
    return dict(zip(kinds.tolist(), counts.tolist(), strict=True))


def _common(often: Sequence[dict[int, int]], pairs: Collection[int]) -> tuple[int, int] | None:
    """The rarest call, sends and receives apart, that all ranks make equally often in a round, and
    how often."""
    shared = [(count, call) for call, count in often[0].items()
              if call not in pairs and all(one.get(call) == count for one in often)]  # fmt: skip
    return None if not shared else (min(shared)[1], min(shared)[0])


def _apart(pauses: Floats, lag: int) -> float:
    """How much pauses differ from those `lag` calls later; NaN where the log is too short."""
    if LEAST_ROUNDS * lag >= pauses.size:
        return np.nan
    return float(np.nanmean(np.abs(pauses[lag:] - pauses[:-lag])))


def _counted(
    comm: Table, by_rank: Sequence[Ints], pauses: Sequence[Floats], is_last: Mask, count: int
) -> Ints:
    """The step of each call: it ends with every `count`-th of certain calls, that after which the
    pause is longest."""
    rows = np.flatnonzero(is_last)
    group, seq = comm.strings("group").codes[rows].astype(np.int64), comm.ints("seq")[rows]
    number = np.full(len(comm), NULL)
    # the same operator has one number on all of its members, wherever their logs begin
    number[rows] = place_among(group, seq)
    pause = np.full(len(comm), np.nan)
    for calls, lasted in zip(by_rank, pauses, strict=True):
        pause[calls] = lasted
    mean = [np.nanmean(pause[rows][number[rows] % count == phase]) for phase in range(count)]
    after = int(np.nanargmax(mean)) + 1
    step = np.zeros(len(comm), np.int64)
    for calls in by_rank:
        at = np.flatnonzero((number[calls] != NULL) & ((number[calls] - after + 1) % count == 0))
        ended = (number[calls[at]] - after + 1) // count
        following = np.append(ended, ended[-1] + 1 if ended.size else 0)
        step[calls] = following[np.searchsorted(at, np.arange(calls.size))]
    step -= step.min()
    return step


def place_among(number: Ints, values: Ints) -> Ints:
    """The rank of each row's value among the different values of its number, from 0."""
    pair = numbered(number, values)
    return np.asarray(pair - np.searchsorted(number[first_rows(pair)], number))
