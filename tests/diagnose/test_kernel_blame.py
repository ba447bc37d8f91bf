"""Jobs of which kernels alone tell who is slow, and culprits whose kernels are named."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from stepscope.diagnose.finding import Diagnosis, Verdict
from stepscope.diagnose.run import diagnose
from stepscope.simulate import Scenario, simulate
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.scenario import Detail
from stepscope.trace import ProcessGroup
from stepscope.window import Floats, Strings, Table, Window

from .jobs import Fault, a_job, put, without
from .kernel_jobs import Mode, a_job_of_kernels, healthy, modes_of

RANKS, WINDOWS = 16, 5
KERNELS = {"gemm": 2e7, "flash_fwd": 1e7, "multi_tensor_adam": 5e6, "norm": 1e6}
NCCL = ("ncclDevKernel_AllReduce", "ncclDevKernel_AllGather", "ncclDevKernel_ReduceScatter")


def computing(seed: int = 0, ranks: int = RANKS, **spread: float) -> dict[str, Floats]:
    return {name: healthy(ranks, WINDOWS, seed=100 * seed + at, usual_ns=usual, **spread)
            for at, (name, usual) in enumerate(KERNELS.items())}  # fmt: skip


def told(times: dict[str, Floats], ranks: int = RANKS, per_host: int = 8) -> Diagnosis:
    modes: list[Mode] = list(chain.from_iterable(modes_of(*one) for one in times.items()))
    return diagnose(a_job_of_kernels(modes, ranks, per_host=per_host))


def the_verdict(diagnosis: Diagnosis) -> Verdict:
    (verdict,) = diagnosis.verdicts
    return verdict


def test_a_slow_rank_of_which_only_kernels_are_known() -> None:
    times = computing()
    for name in ("gemm", "flash_fwd", "norm", "multi_tensor_adam"):
        times[name][5] *= 1.5
    diagnosis = told(times)
    verdict = the_verdict(diagnosis)
    assert (diagnosis.state, verdict.cause, verdict.ranks) == ("slow", "compute", (5,))
    assert verdict.kernels == ("gemm", "flash_fwd", "multi_tensor_adam")
    assert verdict.slowdown == pytest.approx(1.5, rel=0.05)
    # 18 s more per minute
    assert verdict.lost_fraction == pytest.approx(0.3, rel=0.1)
    assert verdict.devices[0].name == "host-000/gpu-5"
    assert verdict.steps is None and verdict.time_ns is not None
    assert "gemm takes 1.5" in verdict.evidence[1].detail


def test_one_kernel_that_is_slow_and_costs_little_deserves_no_verdict() -> None:
    times = computing()
    times["norm"][5] *= 1.4
    assert told(times).verdicts == ()


def test_samples_of_one_replica_are_more_work() -> None:
    """Two hosts would be two devices; here both ranks of a tensor group are slow in passes."""
    times = computing()
    for name in ("gemm", "flash_fwd", "norm"):
        times[name][4:6] *= 1.3
    modes: list[Mode] = list(chain.from_iterable(modes_of(*one) for one in times.items()))
    groups = [ProcessGroup(f"tp-{at}", "tp", (2 * at, 2 * at + 1)) for at in range(8)]
    groups += [ProcessGroup(f"dp-{at}", "dp", tuple(range(at, 16, 2))) for at in range(2)]
    verdict = the_verdict(diagnose(a_job_of_kernels(modes, RANKS, groups)))
    assert (verdict.cause, verdict.ranks) == ("load_imbalance", (4, 5))


@pytest.mark.parametrize("tails", [np.inf, 3.0])
def test_healthy_jobs_are_let_be(tails: float) -> None:
    accused = [seed for seed in range(25)
               if told(computing(seed, noise=0.03, tails=tails)).verdicts]  # fmt: skip
    assert accused == []


def expert_groups() -> list[ProcessGroup]:
    """Eight groups of expert data parallelism, each with a rank on either host, and all ranks."""
    groups = [ProcessGroup(f"edp-{at}", "edp", (at, at + 8)) for at in range(8)]
    return [*groups, ProcessGroup("dp-0", "dp", tuple(range(RANKS)))]


def case_2(waits: bool = True) -> Window:
    """Gathering and scattering take the fourth group longer, and reducing all others."""
    times = computing()
    for at, (name, usual) in enumerate(zip(NCCL, (2e7, 4e6, 4e6), strict=True)):
        times[name] = healthy(RANKS, WINDOWS, seed=50 + at, usual_ns=usual)
    for name in NCCL[1:]:
        times[name][[3, 11]] *= 2.0
    if waits:
        times[NCCL[0]][[3, 11]] -= 0.8e7
    modes: list[Mode] = list(chain.from_iterable(modes_of(*one) for one in times.items()))
    return a_job_of_kernels(modes, RANKS, expert_groups())


def test_a_slow_group_is_named_and_not_those_that_wait_for_it() -> None:
    verdict = the_verdict(diagnose(case_2()))
    assert (verdict.cause, verdict.group) == ("network", "edp-3")
    assert set(verdict.kernels) == set(NCCL[1:])
    assert verdict.slowdown == pytest.approx(2.0, rel=0.05)
    assert verdict.lost_fraction == pytest.approx(1000 * 0.8e7 / 60e9, rel=0.2)
    assert verdict.evidence[0].values["members"] == [3, 11]
    assert verdict.evidence[0].values["waiting"] == NCCL[0]
    assert "which member of edp-3" in verdict.advice


def test_a_slow_group_is_named_in_a_job_with_phases_too() -> None:
    """Own times hold no communication, so that they tell of no group."""
    kernels = case_2()
    job = without(a_job(ranks=RANKS, steps=300), "comm_ops", "kernel_summaries")
    groups = replace(job.job, hosts=kernels.job.hosts, groups=kernels.job.groups)
    job = put(replace(job, job=groups), kernel_summaries=kernels.tables["kernel_summaries"])
    assert [one.group for one in diagnose(job).verdicts] == ["edp-3"]


def test_slow_ranks_that_wait_for_each_other_are_no_slow_group() -> None:
    times = computing()
    for name in times:
        times[name][[3, 11]] *= 3.0
    for at, (name, usual) in enumerate(zip(NCCL, (2e7, 4e6, 4e6), strict=True)):
        times[name] = healthy(RANKS, WINDOWS, seed=50 + at, usual_ns=usual)
    times[NCCL[1]][[3, 11]] *= 2.0
    times[NCCL[0]][[3, 11]] -= 0.8e7
    modes: list[Mode] = list(chain.from_iterable(modes_of(*one) for one in times.items()))
    found = diagnose(a_job_of_kernels(modes, RANKS, expert_groups())).verdicts
    assert sorted(one.ranks for one in found) == [(3,), (11,)]


def test_slow_neighbours_cost_what_the_slowest_costs() -> None:
    times = computing()
    for name in times:
        times[name][[2, 3, 4, 5], 2:] *= 1.2
    verdict = the_verdict(told(times))
    assert verdict.ranks == (2, 3, 4, 5)
    spent = 1000 * sum(KERNELS.values())
    assert verdict.lost_fraction == pytest.approx(0.2 * spent / 60e9, rel=0.1)


def test_a_group_that_no_rank_waits_for_costs_nothing() -> None:
    assert diagnose(case_2(waits=False)).verdicts == ()


def test_a_group_that_itself_waits_for_another_is_not_slow() -> None:
    """The fifth group's hosts are late, the fourth waits for them, and all others for both."""
    times = {NCCL[1]: healthy(RANKS, WINDOWS, usual_ns=4e6),
             NCCL[0]: healthy(RANKS, WINDOWS, seed=1, usual_ns=2e7)}  # fmt: skip
    times[NCCL[1]][[3, 11]] *= 2.0
    times[NCCL[0]][[3, 4, 11, 12]] -= 0.8e7
    modes: list[Mode] = list(chain.from_iterable(modes_of(*one) for one in times.items()))
    assert diagnose(a_job_of_kernels(modes, RANKS, expert_groups())).verdicts == ()


def test_a_group_whose_member_arrives_late_is_not_slow() -> None:
    """The late rank waits for no other: it takes as long as usual."""
    times = {NCCL[1]: healthy(RANKS, WINDOWS, usual_ns=4e6),
             NCCL[0]: healthy(RANKS, WINDOWS, seed=1, usual_ns=2e7)}  # fmt: skip
    times[NCCL[1]][11] *= 2.0
    times[NCCL[0]][[3, 11]] -= 0.8e7
    modes: list[Mode] = list(chain.from_iterable(modes_of(*one) for one in times.items()))
    assert diagnose(a_job_of_kernels(modes, RANKS, expert_groups())).verdicts == ()


def simulated(fault: str, steps: int = 56, detail: Detail = "normal") -> Window:
    scenario = Scenario(ranks=16, steps=steps, faults=(parse_fault(fault),), detail=detail)
    return simulate(scenario).window


def test_kernels_of_a_culprit_are_named() -> None:
    verdict = diagnose(simulated("gpu_slow:rank=5,factor=1.5,only=mlp,from=20")).verdicts[0]
    assert verdict.ranks == (5,)
    assert verdict.kernels and all("mlp" in one or "swiglu" in one for one in verdict.kernels)
    (evidence,) = (one for one in verdict.evidence if one.method == "slow-kernels")
    assert "its peers' time" in evidence.detail


def test_a_copy_that_is_measured_to_be_slow_need_not_cost_much() -> None:
    """Between phases much else may happen; what was measured there is more than a guess."""
    verdict = the_verdict(diagnose(simulated("pcie_slow:rank=5,factor=60")))
    assert (verdict.ranks, verdict.cause) == ((5,), "memory_copy")
    assert verdict.lost_fraction is not None and 0.02 < verdict.lost_fraction < 0.05
    assert verdict.kernels == ("Memcpy HtoD (Pinned -> Device)",)


def test_single_executions_tell_as_well() -> None:
    job = simulated("gpu_slow:rank=5,factor=1.5", steps=30, detail="full")
    job = replace(job, tables={name: job.tables[name] for name in ("steps", "kernels")})
    verdict = the_verdict(diagnose(job))
    assert (verdict.ranks, verdict.cause) == ((5,), "compute")
    assert verdict.slowdown == pytest.approx(1.5, rel=0.05)


def test_kernels_accuse_no_rank_where_own_times_are_known() -> None:
    """A kernel may be slow and its rank none the later."""
    times = computing(ranks=4)
    times["gemm"][2] *= 1.5
    modes: list[Mode] = list(chain.from_iterable(modes_of(*one) for one in times.items()))
    kernels = a_job_of_kernels(modes, 4, per_host=4).tables["kernel_summaries"]
    job = a_job(steps=60)
    assert diagnose(put(job, kernel_summaries=kernels)).verdicts == ()
    slow = a_job(faults=[Fault((2,), "forward-compute", 60, times=1.5)])
    assert diagnose(without(slow, "kernel_summaries")).verdicts[0].ranks == (2,)


def test_streams_that_each_process_numbers_for_itself_are_one() -> None:
    times = computing()
    for name in KERNELS:
        times[name][5] *= 1.5
    modes: list[Mode] = list(chain.from_iterable(modes_of(*one) for one in times.items()))
    job = a_job_of_kernels(modes, RANKS)
    kernels = job.tables["kernel_summaries"]
    verdict = the_verdict(diagnose(put(job, kernel_summaries=kernels.with_column(
        "stream", 7 + kernels.ints("rank")))))  # fmt: skip
    assert (verdict.ranks, verdict.kernels[0]) == ((5,), "gemm")


@pytest.mark.parametrize("stalled", [True, False])
def test_a_rare_stall_shows_in_the_longest_execution_alone(stalled: bool) -> None:
    job = a_job(faults=[Fault((2,), "forward-compute", 60, times=1.5)], stacks=False)
    begin = int(job.tables["steps"].ints("start_ns").min())
    names = ["gemm", "flash_fwd"] * 4
    longest = np.full(8, 1_050_000)
    if stalled:
        longest[4] *= 40
    kernels = Table({
        "rank": np.repeat(np.arange(4), 2), "kernel": Strings.of([*names]),
        "window_start_ns": np.full(8, begin), "window_ns": np.full(8, 60 * 10**9),
        "stream": np.full(8, 7), "count": np.full(8, 5000), "p50_ns": np.full(8, 10**6),
        "p99_ns": np.full(8, 1_040_000), "max_ns": longest,
    })  # fmt: skip
    verdict = diagnose(put(job, kernel_summaries=kernels)).verdicts[0]
    assert (verdict.ranks, verdict.cause) == ((2,), "compute")
    assert verdict.kernels == (("gemm",) if stalled else ())
    said = [one.detail for one in verdict.evidence if one.method == "slow-kernels"]
    assert said == ["rarely, gemm takes up to 40x its peers' longest execution"] * stalled


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize(("fault", "cause"), [("data_slow", "host"), ("gpu_slow", "compute")])
def test_operators_and_kernels_tell_a_late_host_from_a_slow_device(
    fault: str, cause: str, every: int
) -> None:
    """What lies between operators does not; the device of a rank that loads is idle. Kernels may be
    recorded in every fourth step only."""
    slow = parse_fault(f"{fault}:rank=3,from=0")
    job = simulate(Scenario(ranks=8, steps=24, seed=3, faults=(slow,), detail="full")).window
    tables = {name: job.tables[name] for name in ("steps", "comm_ops", "kernels")}
    tables["kernels"] = tables["kernels"].take(tables["kernels"].ints("step") % every == 0)
    verdict = the_verdict(diagnose(Window(job.job, tables)))
    assert (verdict.ranks, verdict.cause) == ((3,), cause)
    alike = [one for one in verdict.evidence if "its device computes no longer" in one.detail]
    assert bool(alike) == (cause == "host")
