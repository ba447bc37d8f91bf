"""What a trace says of each communication kernel: in its own arguments, and in the host's calls
that launched it.

    record_param_comms   operator, size, group, ranks; found by its external id, else by time
    nccl:send 0->1       the annotation around the launch: the operator, the two ranks in the group
    c10d::send           the operator around both; arguments if shapes were recorded

Each is completed by the next: which of them has what depends on the version of torch, and on what
was recorded. A kernel of several sends and receives (`batch_isend_irecv`) is in an annotation
`nccl:coalesced`, and the calls before it say what the kernel executes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.formats.kineto.calls import NOTHING, P2P, PARAMETERS, Call, call_by_name, operator_of
from stepscope.formats.kineto.launches import library_kernels
from stepscope.formats.kineto.recording import Recording
from stepscope.formats.kineto.spans import ends, latest_before, named
from stepscope.window import NULL, Ints, Mask, Table, distinct

OF_DEVICE = ("nccl:", "rccl:", "xccl:")
"""Beginnings of the names of annotations around launches."""
ENQUEUES = "c10d::"
"""Operators that start communication, and return at once, except:"""
BLOCKS = "c10d::monitored_barrier"
_TOGETHER = "coalesced"


@dataclass(frozen=True)
class Said:
    """The operators of kernels: a row for each operator, so several for some kernels."""

    kernel: Ints
    """The row of the kernel."""
    calls: list[Call]
    """The operator is None if unknown."""
    sequence: Ints


@dataclass(frozen=True)
class _Launching:
    """The rows of `calls` that launched each kernel; -1 if unknown."""

    parameters: Ints
    annotation: Ints
    operator: Ints

    @property
    def rows(self) -> tuple[Ints, ...]:
        """In the order in which they are believed."""
        return self.parameters, self.annotation, self.operator

    @property
    def any(self) -> Mask:
        """Whether some call is known."""
        return np.asarray(np.maximum.reduce(self.rows) >= 0)


def said_of(recorded: Recording, kernels: Table, launch_ns: Ints) -> Said:
    """What is known of these kernels, in their order."""
    launching = _launching(recorded, kernels, np.where(library_kernels(kernels), launch_ns, NULL))
    sequence = kernels.ints("sequence")
    for rows in launching.rows[:2]:
        sequence = np.where(sequence == NULL, _of(recorded.calls, "sequence", rows), sequence)
    inside = _inside(recorded, launching)
    names, called = kernels.strings("name"), launching.any.tolist()
    kernel: list[int] = []
    found: list[Call] = []
    for row, call in enumerate(_calls(recorded, kernels, launching)):
        parts = [one.completed(call) for one in inside.get(row, ())] if call.op is None else []
        if not parts:
            parts = [call if call.op else replace(call, op=_op_of(names[row] or "", called[row]))]
        kernel += [row] * len(parts)
        found += parts
    rows = np.array(kernel, np.int64)
    return Said(rows, found, sequence[rows])


def _op_of(kernel: str, called: bool) -> str | None:
    """The operator of a kernel; unknown of a `SendRecv` without a call: it may be an all-to-all."""
    op = operator_of(kernel)
    return None if op in P2P and not called else op


def _of(calls: Table, column: str, rows: Ints) -> Ints:
    """Values of the given rows of `calls`; NULL for negative rows."""
    if not len(calls):
        return np.full(rows.shape, NULL)
    return np.where(rows >= 0, calls.ints(column)[rows], NULL)


def _launching(recorded: Recording, kernels: Table, launch: Ints) -> _Launching:
    calls = recorded.calls
    if not len(calls) or not len(kernels):
        return _Launching(*(np.full(len(kernels), -1) for _ in range(3)))
    parameters = np.flatnonzero(calls.strings("name").equals(PARAMETERS))
    by_id = _by_external(calls.ints("external")[parameters], kernels.ints("external"))
    around = _enclosing(calls, parameters, launch)
    return _Launching(
        np.where(by_id >= 0, parameters[by_id], around) if parameters.size else around,
        _enclosing(calls, np.flatnonzero(named(calls, *OF_DEVICE)), launch),
        _enclosing(calls, np.flatnonzero(named(calls, ENQUEUES)), launch),
    )


def _by_external(ids: Ints, wanted: Ints) -> Ints:
    """The position of each wanted id; -1 if it is missing."""
    if not ids.size:
        return np.full(wanted.shape, -1)
    order = np.argsort(ids, kind="stable")
    at = np.minimum(np.searchsorted(ids[order], wanted), ids.size - 1)
    hit = (ids[order][at] == wanted) & (wanted != NULL)
    return np.where(hit, order[at], -1)


def _enclosing(calls: Table, rows: Ints, moments: Ints) -> Ints:
    """The innermost call in progress at each moment; -1 if there is none."""
    if not rows.size:
        return np.full(moments.shape, -1)
    start, end = calls.ints("start_ns")[rows], ends(calls)[rows]
    at = latest_before(start, moments)
    for _ in range(4):  # an operator inside an operator
        missed = (at >= 0) & (end[np.maximum(at, 0)] < moments)
        at = np.where(missed, at - 1, at)
    inside = (at >= 0) & (moments != NULL) & (end[np.maximum(at, 0)] >= moments)
    return np.where(inside, rows[np.maximum(at, 0)], -1)


def _calls(recorded: Recording, kernels: Table, launching: _Launching) -> list[Call]:
    """The merged records of each kernel; there are few different ones."""
    keys = [kernels.ints("call"), *_described(recorded.calls, launching.rows)]
    known: dict[tuple[int, ...], Call] = {}
    found = []
    for key in zip(*(column.tolist() for column in keys), strict=True):
        if key not in known:
            known[key] = _merged(recorded, key)
        found.append(known[key])
    return found


def _described(calls: Table, launching: Sequence[Ints]) -> Iterator[Ints]:
    """The arguments and the names of calls, by their numbers; -1 where there is no call."""
    for rows in launching:
        for column in (calls.ints("call"), calls.strings("name").codes.astype(np.int64)):
            yield np.where(rows >= 0, column[rows], -1) if column.size else rows


def _merged(recorded: Recording, key: Sequence[int]) -> Call:
    """One call out of arguments, and then of arguments and names in turn."""
    call = recorded.arguments[key[0]] if key[0] >= 0 else NOTHING
    names = recorded.calls.strings("name").values
    for arguments, name in zip(key[1::2], key[2::2], strict=True):
        if arguments >= 0:
            call = call.completed(recorded.arguments[arguments])
        if name >= 0:
            call = call.completed(call_by_name(names[name]))
    return call


def _inside(recorded: Recording, launching: _Launching) -> dict[int, list[Call]]:
    """The sends and receives that each coalesced kernel executes: calls of its thread that
    launched nothing themselves, since the thread's coalesced launch before."""
    calls = recorded.calls
    names = calls.strings("name")
    together = np.array([one.startswith(OF_DEVICE) and one.endswith(_TOGETHER)
                         for one in names.values] or [False], np.bool_)  # fmt: skip
    blocks = np.flatnonzero(together[names.codes])
    kernels = np.flatnonzero(np.isin(launching.annotation, blocks))
    if not kernels.size:
        return {}
    kernel_of = dict(zip(launching.annotation[kernels].tolist(), kernels.tolist(), strict=True))
    singles, merged = _singles(recorded, launching)
    found: dict[int, list[Call]] = {}
    thread, end = calls.ints("thread"), ends(calls)
    for one in distinct(thread[blocks]).tolist():
        own = blocks[thread[blocks] == one]
        rows = np.flatnonzero(thread[singles] == one)
        block = np.searchsorted(end[own], calls.ints("start_ns")[singles[rows]])
        for at, row in zip(block.tolist(), rows.tolist(), strict=True):
            if at < own.size and int(own[at]) in kernel_of:
                found.setdefault(kernel_of[int(own[at])], []).append(merged[row])
    return found


def _singles(recorded: Recording, launching: _Launching) -> tuple[Ints, list[Call]]:
    """The calls for a send or receive that launched no kernel, and what they say."""
    calls = recorded.calls
    for prefix, launched in ((PARAMETERS, launching.parameters), (ENQUEUES, launching.operator)):
        rows = np.flatnonzero(named(calls, prefix))
        rows = rows[~np.isin(rows, launched)]
        keys = zip(*(one.tolist() for one in _described(calls, (rows,))), strict=True)
        said = [_merged(recorded, (-1, *key)) for key in keys]
        kept = [at for at, call in enumerate(said) if call.op in P2P]
        if kept:
            return rows[kept], [said[at] for at in kept]
    return np.zeros(0, np.int64), []
