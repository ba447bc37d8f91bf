"""Matching of kernels with NCCL's operators: never wrong, whatever is lost."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from stepscope.processor.operators.launches import Kernel, Launches, Operator, function_of
from stepscope.wire.records import LAUNCH_SHIFT, UNKNOWN

MS, SECOND = 1_000_000, 1_000_000_000
FUNCTIONS = ("AllReduce", "AllGather", "ReduceScatter")


@dataclass
class Process:
    """One process and its device, which carries out what is launched on each stream in turn."""

    lag_ns: int = 0
    now_ns: int = SECOND
    operators: list[Operator] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    truth: dict[int, Kernel] = field(default_factory=dict)
    _seqs: dict[tuple[str, bool], int] = field(default_factory=dict)
    _launches: dict[str, int] = field(default_factory=dict)
    _free_ns: dict[int, int] = field(default_factory=dict)

    def launch(
        self, communicator: str, *ops: str, stream: int = 7, runs_ns: int = MS,
        sampled: bool = False,
    ) -> None:  # fmt: skip
        """A group of operators, a millisecond after the one before."""
        self.now_ns += MS
        kernel = self._run(ops[0], stream, runs_ns)
        number = self._launches[communicator] = self._launches.get(communicator, 0) % 15 + 1
        for op in ops:
            self._tell(communicator, op, number, kernel if sampled else None)
            self.truth[id(self.operators[-1])] = kernel

    def _run(self, op: str, stream: int, runs_ns: int) -> Kernel:
        start_ns = max(self.now_ns - 5000 + self.lag_ns, self._free_ns.get(stream, 0))
        self._free_ns[stream] = start_ns + runs_ns
        function = "SendRecv" if op in ("Send", "Recv") else op
        launched = 10 * len(self.kernels) + 1  # other calls of CUDA lie in between
        self.kernels.append(Kernel(launched, stream, start_ns, start_ns + runs_ns, function))
        return self.kernels[-1]

    def _tell(self, communicator: str, op: str, number: int, seen: Kernel | None) -> None:
        """Channels begin a little later than their kernel; their times are late by 30 µs."""
        start_ns = UNKNOWN if seen is None else seen.start_ns + 32_000
        end_ns = UNKNOWN if seen is None else seen.end_ns + 25_000
        peer = 0 if op in ("Send", "Recv") else -1
        lane = communicator, peer == -1
        seq = self._seqs[lane] = self._seqs.get(lane, -1) + 1
        at, flags = self.now_ns + len(self.operators) % 7, number << LAUNCH_SHIFT
        self.operators.append(
            Operator(communicator, op, peer, seq, 64, at, end_ns, start_ns, flags)
        )


def matched(
    process: Process,
    operators: Iterable[Operator] | None = None,
    kernels: Iterable[Kernel] | None = None,
    launches: Launches | None = None,
) -> list[Operator]:
    """All that is decided in the end."""
    them = launches or Launches()
    them.operators += process.operators if operators is None else operators
    them.add_kernels(process.kernels if kernels is None else kernels)
    return them.match(1 << 62, 1 << 62, is_quiet=True)


def wrong(process: Process, done: Iterable[Operator]) -> int:
    return sum(op.kernel is not None and op.kernel != process.truth[id(op)] for op in done)


def joined(done: Iterable[Operator]) -> int:
    return sum(op.kernel is not None for op in done)


def of_two_communicators(seed: int = 1, launches: int = 200, sampled: int = 0) -> Process:
    """Interleaved, each on its own stream; every so many launches is sampled."""
    dice, process = random.Random(seed), Process()
    for at in range(launches):
        communicator = dice.choice("ab")
        ops = [dice.choice(FUNCTIONS)] * dice.choice((1, 1, 1, 3))
        process.launch(
            communicator, *ops, stream=7 if communicator == "a" else 9,
            runs_ns=dice.randrange(50_000, 3 * MS), sampled=sampled > 0 and at % sampled == 0,
        )  # fmt: skip
    return process


@pytest.mark.parametrize(
    ("kernel", "function"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "AllReduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "SendRecv"),
        ("ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs4K)", "AllGather"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclDevComm*)", "ReduceScatter"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgs)", "Generic"),
        ("void at::native::nccl_free(float*)", None),
        ("Memcpy HtoD (Pinned -> Device)", None),
    ],
)
def test_what_a_kernel_carries_out(kernel: str, function: str | None) -> None:
    assert function_of(kernel) == function


def test_interleaved_communicators() -> None:
    process = of_two_communicators()
    done = matched(process)
    assert joined(done) == len(process.operators) and not wrong(process, done)


def test_in_whatever_order_they_come() -> None:
    process, dice = of_two_communicators(), random.Random(2)
    operators, kernels = process.operators[:], process.kernels[:]
    dice.shuffle(operators)
    dice.shuffle(kernels)
    done = matched(process, operators, kernels)
    assert joined(done) == len(process.operators) and not wrong(process, done)


def test_operators_of_one_group_have_one_kernel() -> None:
    process = Process()
    process.launch("a", "Send", "Recv", "Send")
    process.launch("a", "Send")
    done = matched(process)
    assert [op.kernel for op in done] == [process.kernels[0]] * 3 + [process.kernels[1]]


def test_without_groups_each_has_its_own() -> None:
    process = Process()
    process.launch("a", "AllReduce")
    process.launch("a", "AllReduce")
    for op in process.operators:
        op.flags = 0
    assert not wrong(process, done := matched(process)) and joined(done) == 2


def test_after_a_gap_of_a_lost_operator_kernels_are_not_matched_by_order() -> None:
    process = of_two_communicators()
    done = matched(process, process.operators[:50] + process.operators[53:])
    assert not wrong(process, done) and joined(done) >= 49


@pytest.mark.parametrize("seed", range(10))
def test_sampled_times_bring_them_together_again(seed: int) -> None:
    process = of_two_communicators(seed, sampled=20)
    done = matched(process, process.operators[:60] + process.operators[63:])
    assert not wrong(process, done)
    assert joined(done) > 0.7 * len(process.operators)


@pytest.mark.parametrize("seed", range(10))
def test_lost_kernels_that_were_counted(seed: int) -> None:
    """CUPTI's injector counts them before anybody looks at the next."""
    process, launches = of_two_communicators(seed, sampled=20), Launches()
    half = process.kernels[99].start_ns
    early = [op for op in process.operators if op.enqueue_ns < half - 5 * MS]
    done = matched(process, early, process.kernels[:100], launches)
    launches.lose_sync()
    late = process.operators[len(early) :]
    done += matched(process, late, process.kernels[104:], launches)
    assert not wrong(process, done)
    assert joined(done) > 0.7 * len(process.operators)
    assert launches.lone_kernels > 0


def test_kernels_of_another_kind_are_noticed() -> None:
    process = Process()
    for op in ("AllReduce", "AllGather", "AllReduce", "ReduceScatter"):
        process.launch("a", op)
    done = matched(process, kernels=process.kernels[1:])
    assert joined(done) == 0


def test_a_kernel_cannot_have_run_before_it_was_launched() -> None:
    process = Process()
    process.launch("a", "AllReduce")
    process.now_ns += SECOND
    process.launch("a", "AllReduce")
    assert joined(matched(process, process.operators[1:], process.kernels[:1])) == 0


def test_a_device_may_lag_far_behind() -> None:
    process = Process(lag_ns=20 * SECOND)
    for _ in range(30):
        process.launch("a", "AllReduce")
    launches = Launches(operators=process.operators[:])
    launches.add_kernels(process.kernels[:10])
    now = process.operators[-1].enqueue_ns
    assert len(launches.match(now, wait_from_ns=0, is_quiet=False)) == 10
    launches.add_kernels(process.kernels[10:])
    done = launches.match(now, wait_from_ns=0, is_quiet=False)
    assert joined(done) == len(done) == 20 and not wrong(process, done)


def test_a_kernel_overtaken_on_another_stream_is_waited_for() -> None:
    """A rank is late: its peers' kernel runs for long, while another communicator goes on."""
    process = Process()
    for communicator, stream in (("a", 7), ("b", 9)) * 2:
        runs_ns = 9 * SECOND if len(process.kernels) == 2 else MS
        process.launch(communicator, "AllReduce", stream=stream, runs_ns=runs_ns)
    launches = Launches(operators=process.operators[:])
    launches.add_kernels([one for one in process.kernels if one.end_ns < 5 * SECOND])
    now = process.now_ns + SECOND
    done = launches.match(now, wait_from_ns=0, is_quiet=False)
    assert len(done) == 2
    launches.add_kernels(process.kernels[2:3])
    done += launches.match(now, wait_from_ns=0, is_quiet=False)
    assert joined(done) == 4 and not wrong(process, done)


def test_an_operator_that_never_ends_gets_no_kernel() -> None:
    process = Process()
    for communicator, stream in (("a", 7), ("b", 9)) * 2:
        process.launch(communicator, "AllReduce", stream=stream)
    del process.kernels[2]
    done = matched(process)
    assert [op.kernel is None for op in done] == [False, False, True, True]
    assert not wrong(process, done)


def test_with_cuda_graphs_only_sampled_times_match() -> None:
    process = of_two_communicators(sampled=10)
    launches = Launches(by_order=False, in_sync=False)
    done = matched(process, launches=launches)
    assert joined(done) >= 15 and not wrong(process, done)
    assert all(op.kernel is None for op in done if op.start_ns == UNKNOWN)


def test_starting_late_does_not_know_earlier_operators() -> None:
    """A processor that was started again, in the midst of a job."""
    process = of_two_communicators(sampled=20)
    done = matched(process, process.operators[90:], process.kernels[70:])
    assert not wrong(process, done) and joined(done) > 0.7 * len(done)


def test_calls_are_counted_modulo_a_power_of_two() -> None:
    process = Process()
    for _ in range(6):
        process.launch("a", "AllReduce")
    first = 2**32 - 25
    kernels = [
        Kernel((one.launch + first) % 2**32, *(one.stream, one.start_ns, one.end_ns, one.function))
        for one in process.kernels
    ]
    launches = Launches(operators=process.operators[:])
    launches.add_kernels(kernels[:3])
    launches.add_kernels(kernels[3:])
    done = launches.match(1 << 62, 1 << 62, is_quiet=True)
    starts = [op.kernel.start_ns for op in done if op.kernel is not None]
    assert starts == [one.start_ns for one in process.kernels]
