"""Matches NCCL's operators with the kernels that executed them, in one process.

The plugin reports operators in their order on the host. CUPTI reports kernels with the correlation
number of the call that launched them. Neither refers to the other. One kernel executes all
operators of an NCCL group (`launch` in their flags), and only such kernels have NCCL's names. So
the n-th group is the n-th kernel, as long as both sequences are complete since the last sync point:

- they are in sync at the beginning, and whenever the sampled times of an operator's channels match
  exactly one kernel;
- missing operators show as gaps in their sequence numbers. CUPTI's injector counts lost kernels and
  reports pauses and CUDA graphs, whose kernels correspond to no call of NCCL;
- each pair must agree in function and time, otherwise sync is lost from there on. A kernel on a
  stream that its communicator has not used before is accepted only after everything launched before
  it has had time to end, because kernels of two streams overtake each other.

An operator that agrees with no kernel gets none. Not distinguished: two threads that launch
operators of one function within microseconds of each other, on two communicators of one stream.

Cost: a sort of what waits.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from stepscope.trace.names import NO_PEER
from stepscope.wire.records import LAUNCH_SHIFT, UNKNOWN

SLACK_NS = 100_000_000
"""NCCL reports an operator after launching its kernel. In between, the thread may be descheduled
for a few time slices: 100 ms at most with default settings."""
SAMPLED_NS = 1_000_000
"""Sampled times are late by the shortest delay of NCCL's thread (device_clock.hpp), which polls
without a pause while it samples: 1 ms if the thread was descheduled every time."""
SPAN_NS = 100_000
"""A kernel may last this much longer than the work of its channels, at both ends together: starting
and ending one takes some 10 µs. Only to find a kernel again: where processes take turns on a GPU,
one may last longer by the time of a turn, milliseconds."""
WRAP = 1 << 32
"""CUPTI counts calls modulo this."""
_KERNEL = re.compile(r"\bnccl\w*?Kernel\w*?_([A-Za-z]+)")
_POINT_TO_POINT = frozenset(("Send", "Recv", "AllToAll", "Gather", "Scatter"))
_ANY = "Generic"
"""NCCL's kernel for functions without a specialised one."""


@lru_cache(1 << 14)
def function_of(kernel: str) -> str | None:
    """The function that a kernel of NCCL executes; None for any other kernel."""
    found = _KERNEL.search(kernel[:256])
    return None if found is None else found[1]


Lane = tuple[str, bool]
"""A communicator, and whether its collectives or its point-to-point operators."""


@dataclass(slots=True, eq=False)
class Operator:
    """One of NCCL's operators, as its plugin reports it; monotonic times of the process."""

    communicator: str
    """The plugin's name for it."""
    op: str
    peer: int
    """A rank of the communicator."""
    seq: int
    size: int
    enqueue_ns: int
    end_ns: int
    start_ns: int
    """The sampled start; UNKNOWN if it was not sampled."""
    flags: int
    kernel: Kernel | None = None
    lane: Lane = field(init=False)
    """The sequence that `seq` counts in: collectives and point-to-point are separate."""

    def __post_init__(self) -> None:
        self.lane = (self.communicator, self.peer == NO_PEER)

    @property
    def function(self) -> str:
        return "SendRecv" if self.op in _POINT_TO_POINT else self.op

    @property
    def span(self) -> tuple[int, int]:
        """Start and end: those of the kernel if known, else the sampled ones."""
        if self.kernel is None:
            return self.start_ns, self.end_ns
        return self.kernel.start_ns, self.kernel.end_ns


@dataclass(frozen=True, slots=True)
class Kernel:
    """One of NCCL's kernels, as CUPTI reports it."""

    launch: int
    stream: int
    start_ns: int
    end_ns: int
    function: str


Launch = list[Operator]
"""The operators that one kernel executes."""


@dataclass
class Launches:
    """Operators and kernels that wait to be matched.

    Attributes:
        in_sync: whether the next launch belongs to the next kernel.
        by_order: whether order is usable at all; otherwise only sampled times are.
    """

    in_sync: bool = True
    by_order: bool = True
    operators: list[Operator] = field(default_factory=list)
    kernels: deque[Kernel] = field(default_factory=deque)
    lone_kernels: int = 0
    """Number of kernels without an operator so far."""
    _next: dict[Lane, int] = field(default_factory=dict)
    _streams: dict[str, set[int]] = field(default_factory=dict)
    _last_launch: int = 0

    def add_kernels(self, some: Iterable[Kernel]) -> None:
        """Takes kernels in any order and sorts them by launch."""
        more = [self._unwrapped(kernel) for kernel in some]
        self.kernels = deque(sorted([*self.kernels, *more], key=lambda k: (k.launch, k.start_ns)))

    def _unwrapped(self, kernel: Kernel) -> Kernel:
        ahead = (kernel.launch - self._last_launch + WRAP // 2) % WRAP - WRAP // 2
        launch = self._last_launch + ahead
        self._last_launch = max(self._last_launch, launch)
        return Kernel(launch, kernel.stream, kernel.start_ns, kernel.end_ns, kernel.function)

    def lose_sync(self) -> None:
        """From here on the next launch need not belong to the next kernel."""
        self.in_sync = False
        self._streams.clear()

    def match(self, until_ns: int, wait_from_ns: int, is_quiet: bool) -> list[Operator]:
        """Removes and returns launches whose kernels are known, or are no longer expected.

        Args:
            until_ns: only launches up to this time.
            wait_from_ns: launches after this time may still get their kernels.
            is_quiet: whether no kernel was reported recently.
        """
        taken: list[Operator] = []
        self.operators.sort(key=lambda op: op.enqueue_ns)
        for launch in launches(self.operators):
            enqueue_ns = launch[0].enqueue_ns
            if enqueue_ns > until_ns or (enqueue_ns > wait_from_ns and self._must_wait(launch)):
                break
            self._decide(launch, is_quiet)
            taken += launch
        self.operators = self.operators[len(taken) :]
        if not self.in_sync:
            self._give_up_kernels(until_ns)
        return taken

    def _must_wait(self, launch: Launch) -> bool:
        """Whether to wait for missing operators, for a kernel, or for one that was overtaken."""
        if self._misses_some(launch):
            return all(
                op.lane in self._next for op in launch
            )  # otherwise they came before we started
        return self.in_sync and (not self.kernels or self._is_on_new_stream(launch))

    def _misses_some(self, launch: Launch) -> bool:
        if len(launch) == 1:  # nearly always
            return launch[0].seq > self._next.get(launch[0].lane, 0)
        firsts: dict[Lane, int] = {}
        for op in launch:
            firsts[op.lane] = min(op.seq, firsts.get(op.lane, op.seq))
        return any(seq > self._next.get(lane, 0) for lane, seq in firsts.items())

    def _is_on_new_stream(self, launch: Launch) -> bool:
        """Whether the next kernel is on a stream that the communicator has not used before."""
        streams = self._streams.get(launch[0].communicator)
        return streams is not None and self.kernels[0].stream not in streams

    def _decide(self, launch: Launch, is_quiet: bool) -> None:
        """Matches a launch that waits no longer with its kernel, if possible."""
        if any(op.seq < self._next.get(op.lane, 0) for op in launch):
            return  # given up before as missing
        if self._misses_some(launch) or not self._agrees_next(launch, is_quiet):
            self.lose_sync()
        if not self.in_sync:
            self._find(launch)
        if self.in_sync:
            self._join(launch)
        self.in_sync &= self.by_order
        for op in launch:
            self._next[op.lane] = max(op.seq + 1, self._next.get(op.lane, 0))

    def _agrees_next(self, launch: Launch, is_quiet: bool) -> bool:
        if not self.kernels or (is_quiet and self._is_on_new_stream(launch)):
            return False
        return _agree(launch, self.kernels[0])

    def _find(self, launch: Launch) -> None:
        """Regains sync if the sampled times match exactly one kernel."""
        found = [one for one in self.kernels if _is_found(launch, one)]
        if len(found) == 1:
            while self.kernels[0] is not found[0]:
                self._give_up_kernel()
            self.in_sync = True

    def _join(self, launch: Launch) -> None:
        kernel = self.kernels.popleft()
        self._streams.setdefault(launch[0].communicator, set()).add(kernel.stream)
        for op in launch:
            op.kernel = kernel

    def _give_up_kernels(self, until_ns: int) -> None:
        """Gives up kernels that no future launch can have started."""
        while self.kernels and self.kernels[0].start_ns < until_ns - SLACK_NS:
            self._give_up_kernel()

    def _give_up_kernel(self) -> None:
        self.kernels.popleft()
        self.lone_kernels += 1


def launches(operators: Iterable[Operator]) -> Iterator[Launch]:
    """Groups operators, in their order, by the kernel that executes them."""
    launch: Launch = []
    for op in operators:
        if launch and not _is_same_launch(launch[0], op):
            yield launch
            launch = []
        launch.append(op)
    if launch:
        yield launch


def _is_same_launch(one: Operator, other: Operator) -> bool:
    number = one.flags >> LAUNCH_SHIFT
    is_known = number != 0 and number == other.flags >> LAUNCH_SHIFT
    return is_known and one.communicator == other.communicator


def _agree(launch: Launch, kernel: Kernel) -> bool:
    """Whether a kernel may belong to a launch, by function and time."""
    of_function = kernel.function == _ANY or kernel.function in {op.function for op in launch}
    after_call = kernel.start_ns >= launch[0].enqueue_ns - SLACK_NS
    ends = [op.end_ns for op in launch if op.end_ns != UNKNOWN]
    before_end = not ends or kernel.start_ns <= max(ends) + SLACK_NS
    return of_function and after_call and before_end and _is_sampled_as(launch, kernel)


def _is_sampled_as(launch: Launch, kernel: Kernel) -> bool:
    """Whether the sampled times lie within a kernel; true if there are none."""
    if not _is_sampled(launch):
        return True
    is_begun = kernel.start_ns <= min(op.start_ns for op in launch) + SAMPLED_NS
    return is_begun and max(op.end_ns for op in launch) - SAMPLED_NS <= kernel.end_ns


def _is_found(launch: Launch, kernel: Kernel) -> bool:
    """Whether the sampled times are those of a kernel, so that no other can be meant."""
    if not _is_sampled(launch) or not _agree(launch, kernel):
        return False
    start_ns = min(op.start_ns for op in launch)
    span_ns = max(op.end_ns for op in launch) - start_ns
    longer_ns = kernel.end_ns - kernel.start_ns - span_ns
    return abs(start_ns - kernel.start_ns) <= SAMPLED_NS and 0 <= longer_ns <= SPAN_NS


def _is_sampled(launch: Launch) -> bool:
    """Whether all operators were sampled: of a group in progress, some are not."""
    return all(UNKNOWN not in (op.start_ns, op.end_ns) for op in launch)
