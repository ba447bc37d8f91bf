"""Why a rank is slow whose phases a device timed: its processor, its device, or more work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Strings, Table, Window

from .jobs import MS, START, WITHIN, Fault, a_job, a_table, both, put, with_samples, without

AHEAD_MS = 60
CULPRIT = 2
SLOW = Fault((CULPRIT,), None, 100, times=1.6)
"""Everything that rank 2 does takes longer."""


def the_verdict(job: Window) -> Verdict:
    (verdict,) = diagnose(job).verdicts
    assert verdict.ranks == (CULPRIT,)
    return verdict


def on_device(job: Window, late: int | None = None) -> Window:
    """The job with phases timed on devices, whose hosts call ahead: all but a late one's."""
    phases, comm = job.tables["phases"], job.tables["comm_ops"]
    kept = {name: column for name, column in phases.columns.items() if name != "cpu_ns"}
    ahead = np.where((comm.ints("rank") == late) & (comm.ints("step") >= 100), 0, AHEAD_MS * MS)
    comm = comm.with_column("enqueue_ns", comm.ints("start_ns") - ahead)
    return put(job, phases=Table(kept), comm_ops=comm)


def starved(job: Window) -> Window:
    """Rank 2 waits for a processor most of the time since step 100."""
    since = since_ns(job)
    return with_samples(job, "run_delay", lambda rank, time: (
        0.9 if rank == CULPRIT and time >= since else 0.02))  # fmt: skip


def since_ns(job: Window) -> int:
    phases = job.tables["phases"]
    return int(phases.ints("start_ns")[phases.ints("step") == 100].min())


def on_two_hosts(job: Window, use: Callable[[str], float]) -> Window:
    """Ranks 2 and 3 on a second host, and how busy each host is."""
    hosts = (Host("host-000", (0, 1)), Host("host-001", (2, 3)))
    table = job.tables["hardware"]
    ranks = table.ints("rank")
    table = table.take(ranks >= 0)
    texts = [hosts[int(rank >= 2)].name for rank in table.ints("rank")]
    times = range(START, int(table.ints("ts_ns").max()), 1000 * MS)
    rows = [(-1, host.name, "cpu_util", time, use(host.name)) for time in times for host in hosts]
    whole = a_table("rank host metric ts_ns value", rows)
    mine = table.with_column("host", Strings.of([*texts]))
    return put(replace(job, job=replace(job.job, hosts=hosts)), hardware=both(mine, whole))


def test_a_host_that_waits_for_a_processor_while_its_device_is_idle() -> None:
    verdict = the_verdict(starved(on_device(a_job(faults=[SLOW]), late=CULPRIT)))
    assert verdict.cause == "host"
    assert "90" not in verdict.summary


def test_other_processes_on_its_host_are_contention() -> None:
    job = starved(on_device(a_job(faults=[SLOW]), late=CULPRIT))
    busy = on_two_hosts(job, lambda host: 0.95 if host == "host-001" else 0.05)
    assert the_verdict(busy).cause == "contention"
    calm = on_two_hosts(job, lambda host: 0.05)
    assert the_verdict(calm).cause == "host"


def test_a_host_that_the_job_itself_fills_has_no_other_processes() -> None:
    job = starved(on_device(a_job(faults=[SLOW]), late=CULPRIT))
    job = with_samples(job, "cpu_util", lambda rank, time: 8.0 if rank == CULPRIT else 1.0)
    busy = on_two_hosts(job, lambda host: 0.95 if host == "host-001" else 0.05)
    assert the_verdict(busy).cause == "host"


def test_a_device_behind_its_host_is_slow_itself() -> None:
    """The host waits for a processor now and then, and is ahead of its device all the same."""
    verdict = the_verdict(starved(on_device(a_job(faults=[SLOW]))))
    assert (verdict.cause, verdict.function) == ("compute", None)


def test_a_late_host_that_no_processor_keeps_is_the_host() -> None:
    nap = replace(SLOW, phase="forward-compute", times=3.0, function="nap (train.py:98)")
    verdict = the_verdict(on_device(a_job(faults=[nap]), late=CULPRIT))
    assert (verdict.cause, verdict.function) == ("host", "nap (train.py:98)")


def test_a_host_without_its_processor_is_no_slow_function() -> None:
    """Whatever it runs takes longer then, and is what stacks show."""
    nap = replace(SLOW, phase="forward-compute", times=3.0, function="nap (train.py:98)")
    verdict = the_verdict(starved(on_device(a_job(faults=[nap]), late=CULPRIT)))
    assert (verdict.cause, verdict.function) == ("host", None)
    assert [one.type for one in verdict.devices] == ["cpu"]


def test_a_compiler_that_waits_for_its_own_workers_compiles() -> None:
    """The innermost functions wait for processes that inductor compiles in."""
    stack = (
        "masked (train.py:98);__call__ (/lib/torch/_dynamo/convert_frame.py:1);"
        "compile_fx (/lib/torch/_inductor/compile_fx.py:7);wait (/lib/python3.11/threading.py:320)"
    )
    compiling = replace(SLOW, phase="forward-compute", times=3.0, computes=False, function=stack)
    verdict = the_verdict(a_job(faults=[compiling]))
    assert (verdict.cause, verdict.function) == ("jit_compile", "masked (train.py:98)")
    assert verdict.devices == ()


LINEAR = "forward (/lib/python3.11/site-packages/torch/nn/modules/linear.py:134)"


def test_of_a_layer_that_all_ranks_run_the_users_function_is_named_that_peers_lack() -> None:
    """`Linear.forward` takes longer, too, but because another function calls it again."""
    layer = WITHIN["forward-compute"]
    again = replace(SLOW, phase="forward-compute", times=3.0,
                    function=f"recompute (train.py:98);{layer}")  # fmt: skip
    job = a_job(faults=[again])
    frames = job.tables["stacks"].strings("frames")
    shown = Strings(frames.codes, tuple(one.replace(layer, LINEAR) for one in frames.values))
    job = put(job, stacks=job.tables["stacks"].with_column("frames", shown))
    assert the_verdict(job).function == "recompute (train.py:98)"


def test_processor_time_counts_in_the_steps_of_the_excess_alone() -> None:
    """It computes in every fourth step only, and all that it takes longer there is computing."""
    busy = Fault((CULPRIT,), "forward-compute", 40, ms=80.0, every=4)
    verdict = the_verdict(a_job(faults=[busy]))
    assert verdict.cause == "compute"
    (use,) = [one for one in verdict.evidence if one.method == "processor-use"]
    computed = use.values["computed"]
    assert isinstance(computed, float) and 0.85 <= computed <= 1.1


def test_running_compiled_code_is_no_compiling() -> None:
    stack = (
        "compile_wrapper (/lib/torch/_dynamo/eval_frame.py:1);"
        "__call__ (/lib/torch/_inductor/output_code.py:7);call (/tmp/torchinductor/c7.py:320)"
    )
    slow = replace(SLOW, phase="forward-compute", times=3.0, function=stack)
    assert the_verdict(a_job(faults=[slow])).cause != "jit_compile"


@pytest.mark.parametrize(
    ("function", "found"), [("compile (cute.py:41)", ["jit_compile"]), ("nap (train.py:98)", [])]
)
def test_one_stall_of_three_percent_needs_a_cause_that_was_measured(
    function: str, found: list[str]
) -> None:
    stall = Fault((CULPRIT,), "forward-compute", 123, 124, ms=4000, function=function)
    long_steps = {"data-load": 10.0, "forward-compute": 240.0, "backward-compute": 400.0,
                  "optimizer": 40.0}  # fmt: skip
    job = a_job(ranks=8, steps=190, noise=0.01, faults=[stall], typical=long_steps)
    assert [one.cause for one in diagnose(job).verdicts] == found


def with_experts(
    job: Window, times: Sequence[float], culprits: tuple[int, ...] = (CULPRIT,)
) -> Window:
    """Passes of attention and experts, half and half; on culprits both longer by these factors."""
    phases = job.tables["phases"]
    rows: list[tuple[object, ...]] = []
    passes = np.flatnonzero(phases.strings("phase").equals("forward-compute", "backward-compute"))
    for at in passes:
        rank, step, start = (int(phases.ints(c)[at]) for c in ("rank", "step", "start_ns"))
        own = int(phases.ints("duration_ns")[at] - phases.ints("wait_ns")[at])
        slow = rank in culprits and step >= 100
        attention, experts = (one if slow else 1.0 for one in times)
        part = int(own * attention / (attention + experts))
        rows.append((rank, step, "self_attention", start, part, 0))
        rows.append((rank, step, "moe_experts", start + part, own - part, 0))
    inner = a_table("rank step phase start_ns duration_ns wait_ns", rows)
    group = ProcessGroup("ep-0", "ep", (0, 1, 2, 3))
    named = replace(job, job=replace(job.job, groups=(*job.job.groups, group)))
    return put(named, phases=both(inner, phases))


PASSES = tuple(Fault((CULPRIT,), phase, 100, times=2.0)
               for phase in ("forward-compute", "backward-compute"))  # fmt: skip


def test_experts_with_more_tokens() -> None:
    job = with_experts(on_device(a_job(faults=PASSES)), (1.0, 3.0))
    verdict = the_verdict(clocked(job, 1980.0))
    assert (verdict.cause, verdict.phase) == ("load_imbalance", "moe_experts")
    assert verdict.slowdown == pytest.approx(3.0, rel=0.1)
    assert "3.0x slower than its peers in moe_experts" in verdict.summary


@pytest.mark.parametrize(("optimizer", "cause"), [(1.0, "load_imbalance"), (2.0, "compute")])
def test_a_device_that_is_slow_in_its_optimizer_has_no_more_tokens(
    optimizer: float, cause: str
) -> None:
    """Phases under names of somebody else: passes hold the experts and show nothing of the rest."""
    slow = [*PASSES, Fault((CULPRIT,), "optimizer", 100, times=optimizer)]
    job = with_experts(a_job(faults=slow, stacks=False), (1.0, 3.0))
    phases = job.tables["phases"]
    keep = ~phases.strings("phase").equals("self_attention")
    phases = phases.take(keep)
    names = {"forward-compute": "fwd_microstep", "backward-compute": "bwd_microstep",
             "optimizer": "step_microstep"}  # fmt: skip
    text = phases.strings("phase")
    renamed = Strings(text.codes, tuple(names.get(name, name) for name in text.values))
    job = put(job, phases=phases.with_column("phase", renamed))
    assert the_verdict(job).cause == cause


def test_a_few_more_tokens_are_not_why_a_rank_is_late() -> None:
    """Its experts take 1 ms of the 60 ms more, and nothing else within its passes takes longer."""
    nap = Fault((CULPRIT,), "forward-compute", 100, ms=60, computes=False)
    job, healthy = a_job(faults=[nap]), with_experts(a_job(), (1.0, 1.02))
    inner = healthy.tables["phases"]
    inner = inner.take(inner.strings("phase").equals("self_attention", "moe_experts"))
    job = replace(put(job, phases=both(inner, job.tables["phases"])), job=healthy.job)
    verdict = the_verdict(job)
    assert (verdict.cause, verdict.phase) == ("compute", "forward-compute")


def test_experts_with_more_tokens_by_sums_of_kernels() -> None:
    job = on_device(a_job(faults=PASSES))
    named = replace(job, job=replace(job.job, groups=(
        *job.job.groups, ProcessGroup("ep-0", "ep", (0, 1, 2, 3)))))  # fmt: skip
    rows = [(rank, since_ns(job) + MS, 60_000 * MS, kernel, 7, 0, 800, p50 * MS)
            for rank in range(4)
            for kernel, p50 in (("flash_fwd", 5), ("ncclDevKernel_SendRecv", 9),
                                ("grouped_gemm", 24 if rank == CULPRIT else 8))]  # fmt: skip
    kernels = a_table("rank window_start_ns window_ns kernel stream cluster count p50_ns", rows)
    verdict = the_verdict(put(named, kernel_summaries=kernels))
    assert (verdict.cause, verdict.kernels) == ("load_imbalance", ("grouped_gemm",))


def test_experts_at_half_the_clock_have_no_more_tokens() -> None:
    job = with_experts(on_device(a_job(faults=PASSES)), (1.0, 3.0))
    assert the_verdict(clocked(job, 990.0)).cause == "compute"


@pytest.mark.parametrize(
    ("slow", "cause"), [((4,), "load_imbalance"), ((4, 5, 6, 7), "compute")], ids=["one", "all"]
)
def test_routing_does_not_make_tokens(slow: tuple[int, ...], cause: str) -> None:
    """One of four may have most of its group's tokens; all four of them cannot have more."""
    passes = [replace(one, ranks=slow) for one in PASSES]
    job = with_experts(on_device(a_job(ranks=8, faults=passes)), (1.0, 3.0), slow)
    groups = [ProcessGroup("ep-0", "ep", (0, 1, 2, 3)), ProcessGroup("ep-1", "ep", (4, 5, 6, 7))]
    job = split_in_two(job, 4)
    job = replace(job, job=replace(job.job, groups=(*job.job.groups, *groups)))
    (verdict,) = diagnose(job).verdicts
    assert (verdict.ranks, verdict.cause) == (slow, cause)


def test_a_device_slow_in_attention_as_well_is_slow() -> None:
    job = on_device(a_job(faults=[replace(SLOW, times=2.0)]))
    assert the_verdict(clocked(with_experts(job, (2.0, 2.0)), 1980.0)).cause == "compute"


def clocked(job: Window, culprit_mhz: float) -> Window:
    times = range(START, int(job.tables["hardware"].ints("ts_ns").max()), 1000 * MS)
    rows = [(rank, "host-000", "sm_clock_mhz", time, culprit_mhz if rank == CULPRIT else 1980.0)
            for time in times for rank in job.ranks]  # fmt: skip
    clocks = a_table("rank host metric ts_ns value", rows)
    return put(job, hardware=both(job.tables["hardware"], clocks))


def test_without_counters_and_calls_a_slow_device_is_compute() -> None:
    job = on_device(a_job(faults=[SLOW]))
    comm = job.tables["comm_ops"]
    calls = comm.with_column("enqueue_ns", comm.ints("start_ns"))
    assert the_verdict(without(put(job, comm_ops=calls), "hardware", "stacks")).cause == "compute"


def split_in_two(job: Window, ranks_per_host: int) -> Window:
    """Eight ranks whose model is split between two each, on hosts of so many."""
    hosts = tuple(Host(f"host-{first}", tuple(range(first, first + ranks_per_host)))
                  for first in range(0, 8, ranks_per_host))  # fmt: skip
    models = tuple(ProcessGroup(f"tp-{at}", "tp", (2 * at, 2 * at + 1)) for at in range(4))
    equals = tuple(ProcessGroup(f"dp-{at}", "dp", tuple(range(at, 8, 2))) for at in range(2))
    return replace(job, job=replace(job.job, hosts=hosts, groups=(*models, *equals)))


def slow_passes(ranks: tuple[int, ...], times: float = 1.5) -> list[Fault]:
    return [Fault(ranks, phase, 100, times=times)
            for phase in ("forward-compute", "backward-compute")]  # fmt: skip


def test_a_replica_with_longer_samples() -> None:
    """Both of its ranks are slow in their passes, and as fast as ever in the optimizer."""
    job = on_device(a_job(ranks=8, faults=slow_passes((2, 3))))
    (verdict,) = diagnose(split_in_two(job, 4)).verdicts
    assert (verdict.cause, verdict.ranks) == ("load_imbalance", (2, 3))


def test_one_of_two_that_share_their_samples_has_no_more_of_them() -> None:
    job = clocked(on_device(a_job(ranks=8, faults=slow_passes((2,)))), 1980.0)
    (verdict,) = diagnose(split_in_two(job, 4)).verdicts
    assert (verdict.cause, verdict.ranks) == ("compute", (2,))


@pytest.mark.parametrize(("clock", "cause"), [(1980.0, "contention"), (990.0, "compute")])
def test_all_devices_of_a_host_slow_alike(clock: float, cause: str) -> None:
    """At their full clocks something shares them; at a low clock of one nothing is said."""
    everything = Fault((0, 1, 2, 3), None, 100, times=1.3)
    job = clocked(on_device(a_job(ranks=8, faults=[everything])), clock)
    (verdict,) = diagnose(split_in_two(job, 4)).verdicts
    assert (verdict.cause, verdict.ranks) == (cause, (0, 1, 2, 3))
    if cause == "contention":
        assert verdict.confidence <= 0.6
        assert [(one.type, one.name) for one in verdict.devices] == [("host", "host-0")]
        assert "nvidia-smi" in verdict.advice


def test_ranks_that_cost_little_alone_cost_enough_together() -> None:
    """Healing one of them alone would bring nothing back: the others are as slow."""
    everything = Fault((0, 1, 2, 3), None, 100, times=1.12)
    job = on_device(a_job(ranks=8, noise=0.01, faults=[everything]))
    (verdict,) = diagnose(split_in_two(job, 4)).verdicts
    assert verdict.ranks == (0, 1, 2, 3)
    assert verdict.lost_fraction == pytest.approx(0.1, abs=0.02)


def test_a_rank_late_with_a_culprit_in_unrecorded_operators_is_no_alibi() -> None:
    """Rank 3 waits for rank 2 within the passes, so both come late to what was recorded."""
    job = split_in_two(on_device(a_job(ranks=8, faults=slow_passes((2,), times=2.0))), 4)
    comm = job.tables["comm_ops"]
    start, order = comm.ints("start_ns"), np.lexsort((comm.ints("seq"), comm.ints("rank")))
    late = start.copy()
    for rank in (2, 3):
        rows = order[comm.ints("rank")[order] == rank]
        late[rows] = start[order[comm.ints("rank")[order] == 2]]
    (verdict,) = diagnose(put(job, comm_ops=comm.with_column("start_ns", late))).verdicts
    assert verdict.ranks == (2,)
    assert verdict.lost_fraction is not None
    assert verdict.lost_fraction >= 0.3


@pytest.mark.parametrize(("passes", "cause"), [(1, "host"), (4, "compute")])
def test_a_rank_that_stands_still_in_one_pass_of_several_has_no_slow_device(
    passes: int, cause: str
) -> None:
    """A device that is slow for a step is so for all of its microbatches."""
    random, phases, steps, now = np.random.default_rng(0), [], [], START
    for step in range(60):
        own = random.normal(1, 0.01, (8, 2, 4)) * 10 * MS
        if step % 7 == 6:
            own[5, 1, :passes] += 80 * MS / passes
        for rank in range(8):
            begins = now + np.append(0, np.cumsum(own[rank])).astype(np.int64)
            phases += [(rank, step, phase, batch, int(begins[4 * at + batch]),
                        int(own[rank, at, batch]), False)
                       for at, phase in enumerate(("forward-compute", "backward-compute"))
                       for batch in range(4)]  # fmt: skip
        lasted = int(own.sum(axis=(1, 2)).max())
        steps += [(rank, step, now, lasted) for rank in range(8)]
        now += lasted
    (verdict,) = diagnose(Window(Job("batches", 8, (Host("a", tuple(range(8))),)), {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase microbatch start_ns duration_ns waits", phases),
    })).verdicts  # fmt: skip
    assert (verdict.ranks, verdict.cause) == ((5,), cause)


@pytest.mark.parametrize(("every", "cause"), [(8, "host"), (1, "compute")])
def test_a_rank_that_takes_long_to_save_has_no_slow_device(every: int, cause: str) -> None:
    """In every step, a phase of that name may compute activations again."""
    random, phases, steps, now = np.random.default_rng(0), [], [], START
    for step in range(72):
        own = random.normal(1, 0.01, 8) * 40 * MS
        saved = np.where(np.arange(8) == 5, 200, 10) * MS * (step % every == every - 1)
        for rank in range(8):
            phases.append((rank, step, "forward-compute", now, int(own[rank]), False))
            if saved[rank]:
                begins = now + int(own[rank])
                phases.append((rank, step, "checkpoint", begins, int(saved[rank]), False))
        lasted = int((own + saved).max())
        steps += [(rank, step, now, lasted) for rank in range(8)]
        now += lasted
    (verdict,) = diagnose(Window(Job("saves", 8, (Host("a", tuple(range(8))),)), {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns waits", phases),
    })).verdicts  # fmt: skip
    assert (verdict.ranks, verdict.cause) == ((5,), cause)
    assert ("async_save" in verdict.advice) is (cause == "host")
