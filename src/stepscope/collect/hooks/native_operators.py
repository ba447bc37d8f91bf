"""Hooks the operators of torch.distributed with C++ kernels (`native/operators.cpp`).

The library notes starts and ends, and the sender's thread collects them before each flush. Unlike
the Python kernels these follow the future of every operator, because that needs no GIL.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any

from stepscope.collect.guard import guarded, raises, swallow
from stepscope.collect.hooks.groups import GroupRegistry
from stepscope.collect.hooks.in_flight import BLOCKED_NS, InFlight, Operator, open_deadline_ns
from stepscope.collect.hooks.operators import OPERATORS, Call
from stepscope.collect.hooks.reducer import take_wait_ns, watch_reducers
from stepscope.collect.hooks.work_wait import watch_wait
from stepscope.collect.native import build
from stepscope.collect.session import LONGEST_ERROR, Session
from stepscope.collect.shared import Shared
from stepscope.trace.names import NO_PEER, UNKNOWN_PEER
from stepscope.wire.records import UNKNOWN, RecordKind

_EVENT = struct.Struct("<iiiiqqqqqq")
_BEGUN, _ENDED, _FAILED, _WAITED, _WAIT_FAILED = range(5)
_ASYNC, _ON_DEVICE = 1, 2
_ROOM = 4096
"""Maximal number of events taken from the library at once."""
_LONGEST_NAME = 1024
_NONE = -1
_WORK_AT = object.__basicsize__
"""pybind11 keeps the address of the C++ object right behind Python's own header. We only compare it
with addresses that the library has seen: if the layout changes, waits are just not matched."""


class NativeWatch:
    """Turns the library's events into operators."""

    def __init__(self, session: Session, registry: GroupRegistry, library: Any) -> None:
        self._session = session
        self._registry = registry
        self._library = library
        self.shared = session.shared = _adopt(session, library)
        self._calls: list[Call] = []
        self._groups: list[str] = []
        self._running: dict[int, Operator] = {}
        self._failed: set[int] = set()
        self._last_words = ctypes.create_string_buffer(LONGEST_ERROR)
        self._buffer = ctypes.create_string_buffer(_ROOM * _EVENT.size)
        self._told_dropped = 0
        self._told_faults: Counter[str] = Counter()
        # before the report of open operators, so that what has ended is not reported as open
        session.before_flush.append(self._drain)
        self._in_flight = InFlight(session, registry, lambda _op: False)
        session.open_since = self.open_since
        self._first_event = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: int(session.begin()))

    def start(self) -> int:
        """Registers our kernels for the operators that this torch has; returns how many."""
        import torch

        self._library.stepscope_start(self._first_event, raises())
        watched = 0
        for name, op in OPERATORS.items():
            overload = getattr(getattr(torch.ops.c10d, name, None), "default", None)
            if overload is not None:
                watched += self._watch(name, Call(op, overload._schema))
        return watched

    def _watch(self, name: str, call: Call) -> int:
        self._calls.append(call)
        done: int = self._library.stepscope_watch(
            name.encode(), call.arguments, len(self._calls) - 1, call.tensors_at, call.group_at,
            _or_none(call.async_at), _or_none(call.peer_at), call.moves_data,
        )  # fmt: skip
        return done

    # --- on the training thread --------------------------------------------------------------

    def waited(self, work: Any, start_ns: int, finished: bool) -> None:
        """A `work.wait()` returned, or raised: then the operator never finished."""
        address = ctypes.c_void_p.from_address(id(work) + _WORK_AT).value
        self._library.stepscope_waited(address, start_ns, finished)

    def backward_ended(self, since_ns: int, only_buckets: bool) -> None:
        """DDP waits for its buckets before backward returns: counts that as blocked."""
        now = time.monotonic_ns()
        self.shared.blocked_ns += take_wait_ns(self.shared, since_ns, now, only_buckets)

    def open_since(self, since_ns: int) -> int:
        """How many operators on CPUs that began since then have not ended as far as is known."""
        return int(self._library.stepscope_open(since_ns))

    @guarded
    def reducer_made(self, group: str) -> None:
        """DDP of a model calls all-reduces from within backward, on this group."""
        self._library.stepscope_add_reducer(group.encode())

    # --- on the sender's thread --------------------------------------------------------------

    def _drain(self) -> None:
        self._listen()
        self._library.stepscope_look_after(open_deadline_ns(self._session))
        count = _ROOM
        while count == _ROOM:
            count = self._library.stepscope_drain(self._buffer, _ROOM)
            self._handle(memoryview(self._buffer)[: count * _EVENT.size])
        self._tell_losses()

    def _listen(self) -> None:
        """Passes on that a library aborts the process; the next turn lets it go on."""
        if self._session.aborts:
            self._library.stepscope_last_words_sent()
            return
        length = self._library.stepscope_last_words(self._last_words, LONGEST_ERROR)
        if length:
            text = self._last_words.raw[:length].decode("utf-8", "replace")
            self._session.abort(" ".join(text.split()))

    def _handle(self, events: memoryview) -> None:
        ends: dict[int, tuple[int, int]] = {}
        for event in _EVENT.iter_unpack(events):
            kind, _, _, _, serial, _, _, start_ns, end_ns, _ = event
            if kind == _BEGUN:
                self._give_up_failed(ends)
                self._begin(*event[1:])
            elif kind in (_FAILED, _WAIT_FAILED):
                self._failed.add(serial)
            elif kind == _ENDED:
                ends[serial] = (end_ns, ends.get(serial, (0, UNKNOWN))[1])
            elif kind == _WAITED and serial in self._running:
                blocked_ns = end_ns - start_ns
                known = ends.get(serial) or (self._end_of(serial, end_ns, blocked_ns),)
                ends[serial] = (known[0], blocked_ns)
        for serial, (end_ns, blocked_ns) in ends.items():
            self._end(serial, end_ns, blocked_ns)

    def _begin(self, op_at: int, flags: int, group_at: int, serial: int, ordinal: int, size: int,
               start_ns: int, _end_ns: int, peer: int) -> None:  # fmt: skip
        """Leaves out the operator if its group is gone before its members could be looked up."""
        call, group = self._calls[op_at], self._group(group_at)
        if not self._registry.find(group):
            return
        if not call.is_p2p:
            peer = NO_PEER
        elif call.peer_at is None:
            peer = UNKNOWN_PEER
        op = Operator(call, group, peer, size, start_ns, ordinal, bool(flags & _ASYNC))
        if flags & _ON_DEVICE:
            self._in_flight.launched(op)
        else:
            self._running[serial] = op
            self._in_flight.begun(op)

    def _end_of(self, serial: int, end_ns: int, blocked_ns: int) -> int:
        """The end of an operator without a future, from the wait for it."""
        ended_before = self._running[serial].is_async and blocked_ns < BLOCKED_NS
        return UNKNOWN if ended_before else end_ns

    def _end(self, serial: int, end_ns: int, blocked_ns: int) -> None:
        self._failed.discard(serial)
        op = self._running.pop(serial, None)
        if op is not None:
            self._in_flight.ended(op, end_ns, blocked_ns)

    def _give_up_failed(self, ends: dict[int, tuple[int, int]]) -> None:
        """The script has gone on after a failed operator: nothing waits for that one any more."""
        for serial in self._failed:
            ends.setdefault(serial, (UNKNOWN, UNKNOWN))
        self._failed.clear()

    def _group(self, at: int) -> str:
        while len(self._groups) <= at:
            room = ctypes.create_string_buffer(_LONGEST_NAME)
            length = self._library.stepscope_group_name(len(self._groups), room, _LONGEST_NAME)
            self._groups.append(room.raw[:length].decode("utf-8", "replace"))
        return self._groups[at]

    def _tell_losses(self) -> None:
        dropped = self.shared.dropped
        if dropped > self._told_dropped:
            self._session.lost(RecordKind.COMM, dropped - self._told_dropped)
            self._told_dropped = dropped
            self._forget_running()  # their ends may be among the lost events
        if self.shared.faults > self._told_faults.total():
            self._tell_faults()

    def _tell_faults(self) -> None:
        """What failed in the library, by place; under test it was raised there already."""
        room, times = ctypes.create_string_buffer(LONGEST_ERROR), ctypes.c_int64()
        for at in itertools.count():
            length = self._library.stepscope_fault(at, room, LONGEST_ERROR, ctypes.byref(times))
            if length <= 0:
                return
            where, _, text = room.raw[:length].decode("utf-8", "replace").partition("\n")
            fresh = times.value - self._told_faults[where]
            if fresh > 0:
                self._told_faults[where] = times.value
                swallow(where, text, fresh)

    def _forget_running(self) -> None:
        for serial in list(self._running):
            self._end(serial, UNKNOWN, UNKNOWN)


def install(session: Session, registry: GroupRegistry) -> NativeWatch | None:
    """None if no library was compiled for this torch.

    Raises:
        OSError: the library does not fit.
        RuntimeError: torch's dispatcher accepts none of our kernels.
    """
    library = _load()
    if library is None:
        return None
    watch = NativeWatch(session, registry, library)
    if not watch.start():
        raise RuntimeError("no operator can be hooked")
    library.stepscope_watch_waits()
    library.stepscope_watch_terminate()
    watch_wait(watch.waited)
    watch_reducers(watch.reducer_made)
    return watch


def _load() -> Any:
    path = _compiled()
    if path is None:
        return None
    library = ctypes.PyDLL(str(path))  # keeps the GIL: no call takes long enough to release it
    library.stepscope_start.restype = None
    library.stepscope_start.argtypes = [ctypes.CFUNCTYPE(ctypes.c_int), ctypes.c_int]
    library.stepscope_add_reducer.restype = None
    library.stepscope_watch_terminate.restype = None
    library.stepscope_last_words_sent.restype = None
    library.stepscope_waited.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
    library.stepscope_waited.restype = None
    library.stepscope_look_after.argtypes = [ctypes.c_int64]
    library.stepscope_look_after.restype = None
    library.stepscope_open.argtypes = [ctypes.c_int64]
    library.stepscope_open.restype = ctypes.c_int64
    library.stepscope_fault.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int64),
    ]  # fmt: skip
    library.stepscope_drain.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    library.stepscope_drain.restype = ctypes.c_int64
    return library


def _compiled() -> Path | None:
    import torch

    if not build.is_wanted():
        return None
    try:
        path = build.library(Path(torch.__file__).parent)
    except OSError:  # an unknown kind of torch, or a user without a home folder
        return None
    return path if build.is_trusted(path) else None


def _adopt(session: Session, library: Any) -> Shared:
    """Switches to the library's memory, starting from the counts so far."""
    ours, theirs = session.shared, Shared.in_dll(library, "stepscope_shared")
    theirs.ordinal, theirs.blocked_ns = ours.ordinal, ours.blocked_ns
    theirs.training_thread = ours.training_thread
    return theirs


def _or_none(at: int | None) -> int:
    return _NONE if at is None else at
