"""The advice for each finding: what to do next, one text per cause."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from stepscope.diagnose.finding import (
    BY_STOPS,
    Cause,
    Ended,
    Evidence,
    Finding,
    Recurring,
    Regression,
    Slowdown,
    SlowLink,
    Stuck,
    Waste,
    is_processor_time,
)
from stepscope.trace import ALLOCATION

SLOW: Mapping[Cause, str] = {
    "compute": "compare what runs on {who} in {phase} with a peer (`py-spy record`), and check "
    "clocks and temperature of the device; if the work is equal, move it to another device",
    "memory_copy": "check the PCIe link of {who} (`nvidia-smi -q -d PCIE`), pin host memory, and "
    "move copies off the critical path",
    "network": "check links, NICs and switches between the ranks involved; run an all-reduce "
    "benchmark on them while the job is stopped",
    "host": "check processor affinity and cgroup limits of {who} (`taskset -p`, `cpu.max`), give "
    "each rank its own cores (`numactl`, `torchrun --numa-binding`), and look for sleeps, locks "
    "and file access in {function}",
    "data_loading": "give the DataLoader of {who} more workers and prefetch, check the storage "
    "it reads from and the samples of its shard, and compare the time of its dataset with a peer",
    "gc": "call `gc.freeze()` after the first step and `gc.disable()`, then collect on all ranks "
    "at the same step every few hundred steps; look for code on {who} that calls `gc.collect()`",
    "jit_compile": "find what recompiles (`TORCH_LOGS=recompiles`), mark changing shapes as "
    "dynamic or pad them, and compile before training",
    "load_imbalance": "the hardware is fine: balance the work (expert capacity, auxiliary loss, "
    "sequence packing) so that no rank gets more of it than others",
    "contention": "find the other processes on the processors of {who} (`top`, `pidstat -t 1`) "
    "and move them, or reserve cores for training with a cpuset",
    "code": "look at {function}: profile it, and compare with the revision and configuration "
    "before {since}",
    "unknown": "profile one slow step on a few ranks (`py-spy record`, torch.profiler) and "
    "compare with a step before {since}",
}  # fmt: skip

IN_FUNCTION = (
    "check what {function} does on {who} and not on a peer: its arguments, the samples it "
    "gets, conditions on the rank (`py-spy record` both); if the work is equal, the processor is "
    "slower there: check its clocks"
)

ON_PROCESSOR = (
    "compare what runs on {who} in {phase} with a peer (`py-spy record` both), and the sizes of "
    "its batches; if the work is equal, the processor is slower there: check its clocks"
)

ON_HOST = (
    "look at {function}, which runs on {who} and not on peers, or not for so long: call it less "
    "often, run it on all ranks in turns, or move it to a thread or a process; look for sleeps, "
    "locks and file access in it. If all ranks should run it alike, check processor affinity and "
    "limits of {who} (`taskset -p`, `cpu.max`)"
)

STOPPED = (
    "find out who stopped and continued {who}: `kill -STOP` by a scheduler that suspends jobs or a "
    "script, a debugger that was attached, Ctrl-Z in a terminal, a control group that was frozen "
    "(`cgroup.freeze`), a virtual machine that was paused or moved; `auditctl -S kill` records who"
)
SHARED_MACHINE = "busy-processors"
"""The method that finds other processes on the processors of all ranks."""
BY_QUOTA = ("cpu-quota", "quota-hosts")
"""Methods that find a quota of processor time."""
QUOTA = (
    "raise or remove the quota of processor time of {who}: `cpu.max` of its control group and its "
    "parents, in Kubernetes the CPU limit of the pod, with Docker `--cpus`, in a systemd unit "
    "`CPUQuota`; until then, fewer threads (`OMP_NUM_THREADS`, workers) leave more for training"
)
SHARED_DEVICES = (
    "look for other processes on the devices of {who} (`nvidia-smi pmon -c 1`, MPS clients, "
    "profilers and monitors that run kernels) and move them; none was observed, so also compare "
    "the clocks, power limits and driver of that host with another host's"
)

OTHER_GPU_PROCESSES = (
    "find the other processes on the devices of {who} (`nvidia-smi --query-compute-apps=pid,name "
    "--format=csv`, `nvidia-smi pmon -c 1`) and move them"
)

UNEVEN = (
    "the hardware is fine: balance the work of each step between replicas (sort or pack sequences "
    "by length, build batches by tokens and not by samples)"
)
STAGE = (
    "move layers from this stage to others, and count the embedding and the loss as layers; if no "
    "other pipeline has the same stage, make sure first that the device of {who} is as fast as the "
    "others"
)
STAGE_OR_HOST = (
    "compare the layers of these stages with those of others; if they are equal, run a benchmark "
    "on {who} and on another host: its devices or processors are slow"
)
STAGE_OR_DEVICE = (
    "compare the clocks and the temperature of the device of {who} with those of others, and the "
    "layers of its stage; if they are equal, move it to another device"
)
BESIDE_TRAINING = (
    "all ranks stand still while {function} runs: call it less often, or move it to a thread or a "
    "worker of the DataLoader; if it waits for the device (`.item()`, `synchronize`), log such "
    "numbers every hundred steps"
)
HOLDS_GIL = (
    "move what {function} computes from its thread to a process of its own, or to code that "
    "releases the GIL; each time the training thread needs the GIL, it waits for it"
)
EXPOSED = (
    "the gradient reduction no longer overlaps the backward pass: compare overlap settings, bucket "
    "sizes and streams (`overlap_grad_reduce`, `bucket_cap_mb`, `CUDA_DEVICE_MAX_CONNECTIONS`) "
    "with those before {since}"
)

SAVING = "saving"
"""Evidence that a rank takes longer in a phase that saves."""
SAVES_SLOWLY = (
    "compare what {who} writes in {phase}, and where to, with a peer: the storage behind that path "
    "(`iostat -x 1`, `nfsiostat`, free space), and how much it is; save less often, or "
    "asynchronously (`torch.distributed.checkpoint.async_save`)"
)

FLAPPING_GROUP = (
    "the link comes and goes, so a benchmark may miss it: look for what happened on the hosts and "
    "switches of {group} at these times: ports that went down and up (`dmesg -T`, `rdma link`, "
    "the switches' logs), errors that were counted (`ethtool -S`, `mlxlink -c`), and traffic of "
    "other jobs"
)
SLOW_GROUP = (
    "a collective is as slow as its slowest member, so it does not show which member of {group} "
    "has the slow link: while the job is stopped, halve the group and run an all-reduce benchmark "
    "(`all_reduce_perf` of nccl-tests) on each half, down to pairs; then look at the PCIe link and "
    "the adapter of the rank that is slow with all others (`nvidia-smi -q -d PCIE`, `lspci -vv`, "
    "`ibstat`)"
)

INTERMITTENT = (
    "watch {who} over these steps: corrected memory errors (`nvidia-smi -q -d ECC`, "
    "`dmesg | grep -i xid`), throttling reasons (`nvidia-smi -q -d PERFORMANCE`), and what else "
    "runs on its host at these times; if it continues, move it to another device"
)

STUCK: Mapping[Cause, str] = {
    "host": "look at the process of {who}: `ps -o stat,wchan`; in state T it was stopped by a "
    "signal (`kill -CONT`), in D it waits for a device, in Z or if it is gone it died: see its "
    "log, dmesg for OOM kills, and restart the job without that host if it happens again",
    "network": "all ranks are in the operator and no data moves: check NIC and link state and the "
    "communication library's log (`NCCL_DEBUG=INFO`), then restart",
    "code": "read the stack of {who} (`py-spy dump --pid`): it runs other code than its peers; "
    "look for branches on the rank, uneven input and swallowed exceptions",
    "data_loading": "{who} waits for its DataLoader: check its workers (`py-spy dump`), the "
    "storage, and whether its shard ended before the others'",
}
ENDED: Mapping[Ended, str] = {
    "out of memory": "compare the memory limit of the host or container of {who} (`free`, "
    "`memory.max`) with what its processes use: fewer DataLoader workers, less prefetching and "
    "caching; see `dmesg` for what else used memory, and restart",
    "killed": "find out who killed the process of {who}: its log, the scheduler's log, `dmesg` "
    "(out of memory, Xid) and limits of the container; then restart",
    "crashed": "see the log of {who} and its core dump (`coredumpctl`, `PYTHONFAULTHANDLER=1`); if "
    "it happens again in another place on the same host, suspect its memory or device",
    "aborted": "read the last lines of the log of {who}: they say which check failed. If they "
    "complain of sizes, operators or closed connections, compare what all ranks called last",
    "failed": "read the traceback in the log of {who}; the errors of the other ranks follow from "
    "it",
    "left": "compare how many steps and batches {who} has with the others: uneven shards, early "
    "stopping that one rank decides, a `break`, an exception that was caught; the errors of the "
    "other ranks follow from it",
}
FAILED_ALIKE = (
    "read one traceback in the log: {who} failed alike, so look for what they share (code, "
    "configuration, data, a step that all reach), and not for what is special about one of them"
)
STUCK_OTHERWISE = (
    "dump the stacks of {who} (`py-spy dump --pid`) and of one waiting rank, and compare where "
    "they are in the program"
)
STUCK_WITHOUT_DUMP = (
    "fetch the dumps of {who}, or check whether their processes are still alive: their logs, dmesg "
    "for OOM kills, `py-spy dump --pid`"
)
MISMATCH = (
    "find what makes {who} take another code path before {group}: conditions on the rank or the "
    "data, unequal numbers of batches, parameters used on some ranks only"
)


def advise(finding: Finding) -> str:
    """What to do next about a finding."""
    undumped = _without_dump(finding)
    if finding.kind == "mismatch":
        text = MISMATCH
    elif isinstance(finding, Stuck) and finding.ended:
        alike = finding.ended == "failed" and len(finding.ranks) != 1
        text = FAILED_ALIKE if alike else ENDED[finding.ended]
    elif finding.kind == "hang":
        text = STUCK.get(finding.cause, STUCK_WITHOUT_DUMP if undumped else STUCK_OTHERWISE)
    else:
        text = _of_slowness(finding)
    who = undumped or finding.ranks
    return text.format(
        who=name_ranks(who) if who else "the ranks",
        phase=finding.phase or "the slow part",
        function=finding.function or "what runs there",
        group=finding.group or "the operator",
        since=f"step {finding.steps[0]}" if finding.steps else "it began",
    )


def _of_slowness(finding: Finding) -> str:
    match finding:
        case Slowdown():
            return _of_slow_ranks(finding)
        case Regression():
            return _of_rise(finding)
        case Waste():
            return _of_waste(finding)
        case Recurring():
            return finding.advises
        case SlowLink(ranks=(), group=str(), columns=columns):
            return FLAPPING_GROUP if comes_and_goes(columns) else SLOW_GROUP
    return SLOW[finding.cause]


def comes_and_goes(columns: Sequence[int]) -> bool:
    """Whether these are less than half of the steps from the first to the last of them."""
    return len(columns) > 0 and 2 * len(columns) < max(columns) - min(columns) + 1


LAUNCHES_LATE = (
    "record stacks (`with_stack=True`) and look at what the main thread does while the device "
    "idles: values that it waits for (`.item()`, `.cpu()`), memory that is allocated and freed in "
    "every step (`expandable_segments`), saving, code between steps"
)
ALLOCATES = (
    "the allocator asks the device for memory, and gives it back, in every step: leave more of it "
    "free (a smaller batch, activation checkpointing), set "
    "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, pad inputs to a few lengths, and remove "
    "`torch.cuda.empty_cache()`; `num_alloc_retries` of `torch.cuda.memory_stats()` should be 0"
)
SHARED_SERVICE = (
    "look at what all ranks use in {phases}: a parameter server, storage or another service, the "
    "network to it, and how much data they move there"
)


def _of_rise(finding: Regression) -> str:
    if finding.exposed is not None:
        return EXPOSED
    if finding.of_gpu:
        return OTHER_GPU_PROCESSES
    if finding.phases:
        return SHARED_SERVICE.format(phases=" and ".join(finding.phases))
    return UNEVEN if finding.cause == "load_imbalance" else SLOW[finding.cause]


def _of_waste(finding: Waste) -> str:
    if finding.cause == "contention":
        return SLOW["contention"] if finding.method == SHARED_MACHINE else OTHER_GPU_PROCESSES
    if finding.cause == "host":
        if was_stopped(finding):
            return STOPPED
        return HOLDS_GIL if finding.holds_gil else LAUNCHES_LATE
    if finding.cause == "load_imbalance":
        return STAGE if finding.ranks else UNEVEN
    if finding.method == "stage-imbalance":
        return STAGE_OR_HOST if finding.cause == "unknown" else STAGE_OR_DEVICE
    code = ALLOCATES if finding.function == ALLOCATION else BESIDE_TRAINING
    return code if finding.cause == "code" else SLOW[finding.cause]


def _of_slow_ranks(finding: Slowdown) -> str:
    if finding.shared_devices:
        return SHARED_DEVICES
    if finding.of_gpu:
        return OTHER_GPU_PROCESSES
    if was_stopped(finding):
        return STOPPED
    if any(method in BY_QUOTA for method in (finding.method, *_methods(finding.supporting))):
        return QUOTA
    if finding.cause == "host":
        return _of_host(finding)
    return _of_compute(finding) if finding.cause == "compute" else SLOW[finding.cause]


def _of_host(finding: Slowdown) -> str:
    if finding.function is not None:
        return ON_HOST
    return SAVES_SLOWLY if SAVING in _methods(finding.supporting) else SLOW["host"]


def was_stopped(finding: Finding) -> bool:
    """Whether its processes were stopped from outside."""
    supporting = finding.supporting if isinstance(finding, Slowdown) else ()
    return any(method in BY_STOPS for method in (finding.method, *_methods(supporting)))


def _methods(evidence: Sequence[Evidence]) -> list[str]:
    return [one.method for one in evidence]


def _of_compute(finding: Slowdown) -> str:
    if finding.function is not None:
        return IN_FUNCTION
    if finding.spikes not in (None, finding.of_steps):
        return INTERMITTENT
    return ON_PROCESSOR if is_processor_time(finding.supporting) else SLOW["compute"]


def _without_dump(finding: Finding) -> tuple[int, ...]:
    """The ranks whose dumps are missing, if the existing dumps explain nothing."""
    if not isinstance(finding, Stuck):
        return ()
    explained = finding.cause != "unknown" or not set(finding.ranks) <= set(finding.without_dump)
    return () if explained else finding.without_dump


def who_spend(ranks: Sequence[int]) -> tuple[str, str]:
    """All ranks of a job as the subject of a sentence: `all ranks spend` and `their`."""
    return (f"rank {ranks[0]} spends", "its") if len(ranks) == 1 else ("all ranks spend", "their")


def name_ranks(ranks: Collection[int]) -> str:
    """`rank 3`, `ranks 3 and 5`, `ranks 0, 1, 2 and 61 more`."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 8:
        return f"ranks {', '.join(map(str, ranks[:3]))} and {len(ranks) - 3} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def list_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 3, 5`, `ranks 0, 1, 2, 3, 4, 5, 6, 7, …`."""
    few = ", ".join(map(str, ranks[:8]))
    return f"rank {few}" if len(ranks) == 1 else f"ranks {few}" + ", …" * (len(ranks) > 8)
