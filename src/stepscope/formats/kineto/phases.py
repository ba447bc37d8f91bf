"""Framework phases of one rank, from annotations and from autograd's functions.

    data-load         enumerate(DataLoader)#….__next__
    backward-compute  first to last autograd::engine::evaluate_function, one per backward pass
    optimizer         Optimizer.step#…
    forward-compute   first operator after any of these, up to the next backward

If a device was recorded, a phase (except data-load) lasts from the first to the last kernel that
the host launched in it, without communication kernels and copies on streams of their own. Waiting
in a phase is the time in which communication was in progress and nothing was computed.
"""

from __future__ import annotations

import numpy as np

from stepscope.formats.kineto.launches import COPIES, communication_kernels
from stepscope.formats.kineto.launching import BLOCKS, ENQUEUES
from stepscope.formats.kineto.names import AUTOGRAD, LOADER, OPTIMIZER_STEP
from stepscope.formats.kineto.recording import Recording
from stepscope.formats.kineto.spans import ends, named, outermost
from stepscope.formats.kineto.steps import Steps
from stepscope.trace import BACKWARD, DATA_LOAD, FORWARD, OPTIMIZER
from stepscope.window import NULL, Ints, Strings, Table, Union, union

_NAMES = (DATA_LOAD, FORWARD, BACKWARD, OPTIMIZER)
_LATEST = np.iinfo(np.int64).max


def phases(
    recorded: Recording, operators: Table, own: Table, steps: Steps, launch_ns: Ints,
    comm: Table | None,
) -> Table:  # fmt: skip
    """The phases without rank, in order of time.

    Args:
        operators: the outermost ones.
        own: what they compute themselves.
    """
    host = _on_host(recorded, operators, steps)
    busy = busy_host(recorded, own)
    rows = host
    if len(recorded.device):
        launched = _on_device(host, recorded, launch_ns)
        talks, start, end = (
            communication_kernels(recorded.device), recorded.device.ints("start_ns"),
            ends(recorded.device),
        )  # fmt: skip
        loads = host.take(host.ints("kind") == 0)
        rows, busy = _stacked(loads, launched), union(start[~talks], end[~talks])
        # those of unknown operators, too: all wait
        comm = Table({"start_ns": start[talks], "end_ns": end[talks]})
    waits = np.where(rows.ints("kind") == 0, 0, waited(rows, busy, comm))
    order = np.argsort(rows.ints("start_ns"), kind="stable")
    table = Table({
        "step": steps.of(rows.ints("host_ns")),
        "phase": Strings(rows.ints("kind").astype(np.int32), _NAMES),
        "microbatch": rows.ints("microbatch"),
        "start_ns": rows.ints("start_ns"),
        "duration_ns": rows.ints("end_ns") - rows.ints("start_ns"),
        "wait_ns": waits,
    })  # fmt: skip
    table = table.take(order)
    return table.take(table.ints("step") != NULL)


def busy_host(recorded: Recording, own: Table) -> Union:
    """The time that the main thread spent in its own operators or in the data loader.

    A call of a collective only enqueues it, so its time is the thread's own: on a processor that
    others use it may be long.

    Args:
        own: what operators compute themselves.
    """
    enqueues = recorded.cpu.take(named(recorded.cpu, ENQUEUES) & ~named(recorded.cpu, BLOCKS))
    loads = recorded.marks.take(named(recorded.marks, LOADER))
    main = [one.take(one.ints("thread") == recorded.main) for one in (own, enqueues)]
    start = np.concatenate([one.ints("start_ns") for one in (*main, loads)])
    return union(start, np.concatenate([ends(one) for one in (*main, loads)]))


def waited(rows: Table, busy: Union, comm: Table | None) -> Ints:
    """How long communication was in progress in each row while nothing was computed."""
    if comm is None:
        return np.zeros(len(rows), np.int64)
    end = comm.ints("end_ns")
    if (end == NULL).any():
        return np.full(len(rows), NULL)
    either = union(
        np.concatenate((busy.start, comm.ints("start_ns"))), np.concatenate((busy.end, end))
    )
    begin, until = rows.ints("start_ns"), rows.ints("end_ns")
    return either.within(begin, until) - busy.within(begin, until)


def _on_host(recorded: Recording, operators: Table, steps: Steps) -> Table:
    """Phases as the host ran them, in order of time."""
    loads = _marked(recorded, LOADER)
    optimizer = _marked(recorded, OPTIMIZER_STEP)
    work = operators.take((operators.ints("thread") == recorded.main) & ~named(operators, AUTOGRAD))
    starts = work.ints("start_ns")
    backward = _backwards(recorded, starts)
    forward = _forwards(backward, [loads, optimizer, backward], starts, steps)
    parts = [loads, forward, backward, optimizer]
    kind = np.repeat(np.arange(4), [start.size for start, _ in parts])
    start = np.concatenate([start for start, _ in parts])
    microbatch = [np.full(loads[0].size, -1), _microbatch(forward[1], steps),
                  _microbatch(backward[1], steps), np.full(optimizer[0].size, -1)]  # fmt: skip
    return Table({
        "kind": kind, "host_ns": start, "start_ns": start,
        "end_ns": np.concatenate([end for _, end in parts]),
        "microbatch": np.concatenate(microbatch),
    })  # fmt: skip


def _marked(recorded: Recording, prefix: str) -> tuple[Ints, Ints]:
    for table in (recorded.marks, recorded.cpu):
        chosen = table.take(named(table, prefix))
        if len(chosen):
            chosen = chosen.take(outermost(chosen))
            return chosen.ints("start_ns"), ends(chosen)
    return np.zeros(0, np.int64), np.zeros(0, np.int64)


def _backwards(recorded: Recording, work: Ints) -> tuple[Ints, Ints]:
    """Backward passes: runs of autograd's functions without other work of the main thread."""
    functions = recorded.cpu.take(named(recorded.cpu, AUTOGRAD))
    if not len(functions):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    start, reach = functions.ints("start_ns"), np.maximum.accumulate(ends(functions))
    between = np.searchsorted(work, start[1:]) - np.searchsorted(work, reach[:-1])
    first = np.concatenate(([0], 1 + np.flatnonzero(between > 0)))
    return start[first], reach[np.append(first[1:] - 1, start.size - 1)]


def _forwards(
    backward: tuple[Ints, Ints], others: list[tuple[Ints, Ints]], work: Ints, steps: Steps
) -> tuple[Ints, Ints]:
    """From the first operator after whatever came before, to each backward pass."""
    begins = backward[0]
    edges = [steps.start_ns, steps.end_ns]  # what follows the last step is not part of it
    boundaries = np.sort(np.concatenate([end for _, end in others] + edges))
    before = np.searchsorted(boundaries, begins, side="right") - 1
    floor = (
        np.where(before >= 0, boundaries[np.maximum(before, 0)], NULL)
        if boundaries.size
        else begins
    )
    at = np.searchsorted(work, floor)
    first = np.append(work, _LATEST)[at]
    keep = (first < begins) & (floor != NULL)
    return first[keep], begins[keep]


def _microbatch(end: Ints, steps: Steps) -> Ints:
    """The number of earlier backward passes in the same step."""
    step = steps.of(end - 1)
    changed = np.flatnonzero(np.diff(step, prepend=NULL + 1))
    lengths = np.diff(np.append(changed, step.size))
    return np.asarray(np.arange(step.size) - np.repeat(changed, lengths), np.int64)


def _on_device(host: Table, recorded: Recording, launch_ns: Ints) -> Table:
    """Phases on the device: first start and last end of the kernels launched in each.

    Copies on streams on which nothing computes do not count: what is fetched ahead may begin while
    the device still executes an earlier phase.
    """
    rows = host.take(host.ints("kind") != 0)
    rows = rows.take(np.argsort(rows.ints("start_ns"), kind="stable"))
    works, stream = ~communication_kernels(recorded.device), recorded.device.ints("stream")
    computes = works & ~named(recorded.device, *COPIES)
    chosen = works & np.isin(stream, stream[computes]) & (launch_ns != NULL)
    launch = launch_ns[chosen]
    at = np.searchsorted(rows.ints("start_ns"), launch, side="right") - 1
    index = np.maximum(at, 0)
    inside = (at >= 0) & (launch <= rows.ints("end_ns")[index] if len(rows) else False)
    first, last = np.full(len(rows), _LATEST), np.full(len(rows), NULL)
    np.minimum.at(first, index[inside], recorded.device.ints("start_ns")[chosen][inside])
    np.maximum.at(last, index[inside], ends(recorded.device)[chosen][inside])
    rows = rows.with_column("start_ns", first).with_column("end_ns", last)
    return rows.take(last != NULL)


def _stacked(one: Table, other: Table) -> Table:
    return Table({name: np.concatenate((one.ints(name), other.ints(name))) for name in one.columns})
