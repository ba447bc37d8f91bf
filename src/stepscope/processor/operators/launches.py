"""Which of NCCL's kernels carried out which of its operators, in one process.

The plugin tells of operators, in their order on the host; CUPTI tells of kernels, with the number
of the call that launched them. Neither names the other. One kernel carries out all operators of a
group of NCCL's (`launch` in their flags), and nothing but such a kernel bears NCCL's name; so the
n-th group is the n-th kernel, as long as both sides have told of everything since they last agreed:

- they agree at the beginning, and wherever the sampled times of an operator's channels single out
  one kernel;
- operators that are missing show as gaps in their numbers, lost kernels are counted by CUPTI's
  injector, which also says when it paused and where there are CUDA graphs, whose kernels no call of
  NCCL's answers to;
- each pair must agree in function and time, else both sides have parted from there on. A kernel
  on a stream that its communicator has not used before counts once whatever was launched before it
  has had time to end: kernels of two streams overtake each other.

What no kernel agrees with stays without one. Cannot see: two threads that launch operators of one
function within microseconds of each other, on two communicators of one stream.

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
"""NCCL tells of an operator after it launched its kernel: a thread may be put aside in between for
a few slices of the scheduler, 100 ms at the most that it grants others by default."""
SAMPLED_NS = 1_000_000
"""Sampled times are late by the quickest notice that NCCL's thread took (device_clock.hpp), which
polls without a pause while it samples: 1 ms is that of one that was put aside each time."""
SPAN_NS = 100_000
"""A kernel may last so much longer than the work of its channels, at both ends together: to start
and to end one takes some 10 µs. Not measured on a GPU."""
WRAP = 1 << 32
"""CUPTI counts calls modulo this."""
_KERNEL = re.compile(r"\bnccl\w*?Kernel\w*?_([A-Za-z]+)")
_POINT_TO_POINT = frozenset(("Send", "Recv", "AllToAll", "Gather", "Scatter"))
_ANY = "Generic"
"""NCCL's kernel for what it has no special one for."""


@lru_cache(1 << 14)
def function_of(kernel: str) -> str | None:
    """What a kernel of NCCL's carries out; None of any other kernel."""
    found = _KERNEL.search(kernel[:256])
    return None if found is None else found[1]


Lane = tuple[str, bool]
"""A communicator; its collectives, or the others."""


@dataclass(slots=True, eq=False)
class Operator:
    """One of NCCL's, as its plugin tells; monotonic times of the process."""

    communicator: str
    """As the plugin names it."""
    op: str
    peer: int
    """In the communicator."""
    seq: int
    size: int
    enqueue_ns: int
    end_ns: int
    start_ns: int
    """As sampled; UNKNOWN where it was not."""
    flags: int
    kernel: Kernel | None = None
    lane: Lane = field(init=False)
    """Within which it is numbered: collectives and the others apart."""

    def __post_init__(self) -> None:
        self.lane = (self.communicator, self.peer == NO_PEER)

    @property
    def function(self) -> str:
        return "SendRecv" if self.op in _POINT_TO_POINT else self.op

    @property
    def span(self) -> tuple[int, int]:
        """Start and end, as well as they are known."""
        if self.kernel is None:
            return self.start_ns, self.end_ns
        return self.kernel.start_ns, self.kernel.end_ns


@dataclass(frozen=True, slots=True)
class Kernel:
    """One of NCCL's, as CUPTI tells."""

    launch: int
    stream: int
    start_ns: int
    end_ns: int
    function: str


Launch = list[Operator]
"""Operators that one kernel carries out."""


@dataclass
class Launches:
    """Operators and kernels that wait for each other.

    Attributes:
        in_sync: whether the next launch is the next kernel.
        by_order: whether order tells at all, or sampled times alone.
    """

    in_sync: bool = True
    by_order: bool = True
    operators: list[Operator] = field(default_factory=list)
    kernels: deque[Kernel] = field(default_factory=deque)
    lone_kernels: int = 0
    """So many were not joined so far."""
    _next: dict[Lane, int] = field(default_factory=dict)
    _streams: dict[str, set[int]] = field(default_factory=dict)
    _last_launch: int = 0

    def add_kernels(self, some: Iterable[Kernel]) -> None:
        """Takes kernels in any order; what was launched first comes first."""
        more = [self._unwrapped(kernel) for kernel in some]
        self.kernels = deque(sorted([*self.kernels, *more], key=lambda k: (k.launch, k.start_ns)))

    def _unwrapped(self, kernel: Kernel) -> Kernel:
        ahead = (kernel.launch - self._last_launch + WRAP // 2) % WRAP - WRAP // 2
        launch = self._last_launch + ahead
        self._last_launch = max(self._last_launch, launch)
        return Kernel(launch, kernel.stream, kernel.start_ns, kernel.end_ns, kernel.function)

    def lose_sync(self) -> None:
        """From here on the next launch need not be the next kernel."""
        self.in_sync = False
        self._streams.clear()

    def match(self, until_ns: int, wait_from_ns: int, is_quiet: bool) -> list[Operator]:
        """Takes launches up to a time, whose kernels are known now, or are not to be had.

        Args:
            wait_from_ns: what was launched later may still get its kernel.
            is_quiet: no kernel has ended of late.
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
        """For operators that are missing, for a kernel, or for one that is overtaken."""
        if self._misses_some(launch):
            return all(op.lane in self._next for op in launch)  # else we came too late for them
        return self.in_sync and (not self.kernels or self._is_on_new_stream(launch))

    def _misses_some(self, launch: Launch) -> bool:
        if len(launch) == 1:  # nearly always
            return launch[0].seq > self._next.get(launch[0].lane, 0)
        firsts: dict[Lane, int] = {}
        for op in launch:
            firsts[op.lane] = min(op.seq, firsts.get(op.lane, op.seq))
        return any(seq > self._next.get(lane, 0) for lane, seq in firsts.items())

    def _is_on_new_stream(self, launch: Launch) -> bool:
        """Whether the next kernel is on a stream that the communicator has not used so far."""
        streams = self._streams.get(launch[0].communicator)
        return streams is not None and self.kernels[0].stream not in streams

    def _decide(self, launch: Launch, is_quiet: bool) -> None:
        """Joins a launch if it can be, which does not wait any more."""
        if any(op.seq < self._next.get(op.lane, 0) for op in launch):
            return  # given up as missing
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
        """By sampled times, which must single out one kernel."""
        found = [one for one in self.kernels if _is_sampled(launch) and _agree(launch, one)]
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
        """Those that no launch to come can have started."""
        while self.kernels and self.kernels[0].start_ns < until_ns - SLACK_NS:
            self._give_up_kernel()

    def _give_up_kernel(self) -> None:
        self.kernels.popleft()
        self.lone_kernels += 1


def launches(operators: Iterable[Operator]) -> Iterator[Launch]:
    """Operators in their order, together where one kernel carries them out."""
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
    """Whether a kernel may be that of a launch."""
    of_function = kernel.function == _ANY or kernel.function in {op.function for op in launch}
    after_call = kernel.start_ns >= launch[0].enqueue_ns - SLACK_NS
    ends = [op.end_ns for op in launch if op.end_ns != UNKNOWN]
    before_end = not ends or kernel.start_ns <= max(ends) + SLACK_NS
    return of_function and after_call and before_end and _is_sampled_as(launch, kernel)


def _is_sampled_as(launch: Launch, kernel: Kernel) -> bool:
    """Whether sampled times are those of a kernel; true where there are none."""
    if not _is_sampled(launch):
        return True
    start_ns = min(op.start_ns for op in launch)
    span_ns = max(op.end_ns for op in launch) - start_ns
    longer_ns = kernel.end_ns - kernel.start_ns - span_ns
    return abs(start_ns - kernel.start_ns) <= SAMPLED_NS and 0 <= longer_ns <= SPAN_NS


def _is_sampled(launch: Launch) -> bool:
    """As a whole: of a group that began before, some are not."""
    return all(UNKNOWN not in (op.start_ns, op.end_ns) for op in launch)
