"""Diagnoses as diagnosis would make them, one per kind of report. Fully deterministic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

from stepscope.diagnose.decide.verdict import with_loss
from stepscope.diagnose.finding import (
    AnomalousWindow,
    Device,
    Diagnosis,
    Evidence,
    Skipped,
    Verdict,
)
from stepscope.diagnose.overview.overview import by_times
from stepscope.diagnose.shown import (
    ClockFit,
    LastArrival,
    Opinion,
    Period,
    RankPhase,
    RankTime,
    StepSeries,
)

T0 = 1_766_000_000_000_000_000
"""2025-12-17 19:33:20 UTC."""
S = 1_000_000_000
MS = 1_000_000


def wobble(i: int) -> float:
    """Noise of ±1.5 % that is the same on every machine."""
    return 1 + ((i * 7919) % 31 - 15) / 1000


def series(first: int, last: int, slow_from: int | None = None, factor: float = 1.0) -> StepSeries:
    steps = tuple(range(first, last + 1))
    slow = (factor if slow_from is not None and step >= slow_from else 1.0 for step in steps)
    took = tuple(int(1.2 * S * wobble(s) * f) for s, f in zip(steps, slow, strict=True))
    return StepSeries(steps, took)


def rank_phases(ranks: int, slow: dict[tuple[int, str], float]) -> tuple[RankPhase, ...]:
    phases = {"backward-compute": 610 * MS, "forward-compute": 310 * MS, "optimizer": 42 * MS,
              "data-load": 3 * MS}  # fmt: skip
    return tuple(
        RankPhase(rank, phase, int(ns * wobble(rank + ns) * slow.get((rank, phase), 1.0)))
        for rank in range(ranks)
        for phase, ns in phases.items()
    )


def as_diagnosed(sample: Callable[[], Diagnosis]) -> Callable[[], Diagnosis]:
    """The sample with the losses and limits that a diagnosis would have worked out."""

    @wraps(sample)
    def completed() -> Diagnosis:
        made = sample()
        verdicts = tuple(with_loss(one, made.ranks, made.series) for one in made.verdicts)
        return replace(made, verdicts=verdicts, limits=by_times(made.rank_times))

    return completed


@as_diagnosed
def slow_rank() -> Diagnosis:
    verdict = Verdict(
        kind="slowdown",
        cause="compute",
        summary="rank 37 computes 1.9x slower than its peers in backward-compute from step 1100",
        advice="drain host-004 and check GPU 5 (`nvidia-smi -q -d PERFORMANCE,ECC -i 5`): its "
        "clock fell from 1980 to 1050 MHz",
        ranks=(37,),
        hosts=("host-004",),
        devices=(Device("gpu", "host-004/gpu-5", 0.93),),
        phase="backward-compute",
        kernels=("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_nt", "flash_bwd"),
        steps=(1100, 1200),
        time_ns=(T0, T0 + 300 * S),
        slowdown=1.9,
        lost_fraction=0.18,
        confidence=0.97,
        victims=63,
        evidence=(
            Evidence(
                "argus-l2",
                "own backward-compute time of rank 37 is 1.16 s against a median of 0.61 s over "
                "63 peers in 101 of 101 steps",
                {"own_ns": 1_160_000_000, "median_ns": 610_000_000, "z": 41.5},
            ),
            Evidence(
                "argus-l3",
                "3 of 41 kernels run 1.9x longer, at the same count",
                {"kernels": 3, "ratios": [1.91, 1.88, 1.9], "same_count": True},
            ),
            Evidence(
                "hardware", "sm_clock_mhz of host-004/gpu-5 fell to 1050 at step 1099",
                {"sm_clock_mhz": 1050.0, "before": float("nan")},
            ),
        ),
        opinions=(Opinion("arrival", (37,)), Opinion("own time", (37,)), Opinion("K-S", (36, 37))),
        agreement="arrival says 37, own time says 37, K-S says 36 and 37: 36 waits for 37",
    )  # fmt: skip
    return Diagnosis(
        job_id="llama-70b-0412",
        ranks=64,
        state="regression",
        steps=(1000, 1200),
        windows=(AnomalousWindow("regression", (1100, 1200)),),
        verdicts=(verdict,),
        clocks=(ClockFit("host-001", 210_000, 0.4), ClockFit("host-004", -3_412_000, 3.1)),
        skipped=(
            Skipped("venus-network", "no table transfers", unrecorded=True),
            Skipped("holmes-path", "no table transfers", unrecorded=True),
            Skipped("bubbles", "the schedule is not known"),
        ),
        series=series(1000, 1200, 1100, 1.45),
        rank_phases=rank_phases(64, {(37, "backward-compute"): 1.9}),
        losses={"kernels": 12_410},
        cost={"processor_cpu": 0.021, "trainer_fraction": 0.0031, "written_bytes": 48_200_000},
    )


@as_diagnosed
def data_loading() -> Diagnosis:
    verdict = Verdict(
        kind="slowdown",
        cause="data_loading",
        summary="rank 2 waits 0.4 s per step for its next batch",
        advice="give the data loader of rank 2 more workers, or look at the file server that "
        "host-000 reads from",
        ranks=(2,),
        hosts=("host-000",),
        phase="data-load",
        function="__next__ (dataloader.py:701)",
        steps=(40, 90),
        time_ns=(T0 + 48 * S, T0 + 130 * S),
        slowdown=140.0,
        lost_fraction=0.25,
        confidence=0.9,
        victims=7,
        evidence=(Evidence("phases", "data-load of rank 2 takes 420 ms, its peers 3 ms"),),
    )
    return Diagnosis(
        job_id="gpt2-small",
        ranks=8,
        state="slow",
        steps=(0, 90),
        windows=(AnomalousWindow("slow", (0, 90)),),
        verdicts=(verdict,),
        series=series(0, 90),
        rank_phases=rank_phases(8, {(2, "data-load"): 140.0}),
    )


@as_diagnosed
def gc() -> Diagnosis:
    took = tuple(int(1.2 * S * wobble(s) * (1.6 if s % 50 == 7 else 1)) for s in range(500))
    verdict = Verdict(
        kind="slowdown",
        cause="gc",
        summary="Python garbage collection stops ranks for 0.7 s about every 50 steps",
        advice="call gc.disable() and gc.collect() every N steps on all ranks at once",
        phase="forward-compute",
        function="gc.collect generation 2",
        steps=(7, 457),
        slowdown=1.6,
        lost_fraction=0.012,
        confidence=0.88,
        evidence=(Evidence("pauses", "10 of 10 slow steps hold a collection of generation 2"),),
    )
    windows = tuple(AnomalousWindow("jitter", (s, s)) for s in range(7, 500, 50))
    return Diagnosis(
        job_id="verl-ppo",
        ranks=16,
        state="jitter",
        steps=(0, 499),
        windows=windows,
        verdicts=(verdict,),
        series=StepSeries(tuple(range(500)), took),
    )


@as_diagnosed
def hang() -> Diagnosis:
    verdict = Verdict(
        kind="hang",
        cause="code",
        summary="rank 3 never entered AllReduce 812 of dp-0: it is in save_checkpoint, alone",
        advice="call save_checkpoint on every rank of dp-0, or put the barrier in front of it on "
        "all of them",
        ranks=(3,),
        hosts=("host-000",),
        group="dp-0",
        function="save_checkpoint (train.py:88)",
        steps=(101, 101),
        time_ns=(T0, T0 + 4000 * S),
        confidence=0.99,
        victims=7,
        evidence=(
            Evidence("holmes-hang", "7 of 8 members wait in AllReduce 812; rank 3 stands at 811"),
            Evidence("stacks", "rank 3 sat in the same frame in all of 40 samples over 60 s"),
        ),
        stack=(
            "<module> (train.py:140)",
            "main (train.py:131)",
            "train (train.py:97)",
            "save_checkpoint (train.py:88)",
            "save (torch/serialization.py:943)",
            "write (/mnt/shared/checkpoints/<script>.py:12)",
        ),
    )
    return Diagnosis(
        job_id="gpt2-small",
        ranks=8,
        state="hang",
        steps=(0, 101),
        windows=(AnomalousWindow("hang", (101, 101)),),
        verdicts=(verdict,),
        series=series(0, 100),
        skipped=(Skipped("argus-l3", "no table kernels"),),
    )


@as_diagnosed
def code_all_ranks() -> Diagnosis:
    verdict = Verdict(
        kind="slowdown",
        cause="code",
        summary="all ranks spend 30% of each step in log_grad_norms since step 200",
        advice="look at log_grad_norms (train.py:77): it copies every gradient to the host",
        function="log_grad_norms (train.py:77)",
        steps=(200, 400),
        slowdown=1.4,
        lost_fraction=0.29,
        confidence=0.8,
        evidence=(Evidence("eroica", "log_grad_norms covers 31% of each worker, before 0%"),),
    )
    return Diagnosis(
        job_id="verl-ppo",
        ranks=32,
        state="regression",
        steps=(0, 400),
        windows=(AnomalousWindow("regression", (200, 400)),),
        verdicts=(verdict,),
        series=series(0, 400, 200, 1.4),
        rank_phases=rank_phases(32, {}),
    )


@as_diagnosed
def two_culprits() -> Diagnosis:
    network = Verdict(
        kind="slowdown",
        cause="network",
        summary="data to and from host-001/nic-1 moves 4x slower from step 60",
        advice="check the cable and port of host-001/nic-1",
        ranks=(12, 13),
        hosts=("host-001",),
        group="dp-1",
        devices=(
            Device("nic", "host-001/nic-1", 0.71),
            Device("link", "host-001/nic-1--leaf-0", 0.24),
        ),
        steps=(60, 120),
        lost_fraction=0.31,
        confidence=0.85,
        victims=14,
        evidence=(Evidence("holmes-path", "5 slow operators share host-001/nic-1, no fast one"),),
    )
    host = Verdict(
        kind="slowdown",
        cause="host",
        summary="rank 5 launches its kernels 80 ms late from step 90",
        advice="give rank 5 its own cores",
        ranks=(5,),
        hosts=("host-000",),
        phase="forward-compute",
        steps=(90, 120),
        lost_fraction=0.05,
        confidence=0.6,
        victims=15,
    )
    return Diagnosis(
        job_id="moe-16",
        ranks=16,
        state="both",
        steps=(0, 120),
        windows=(AnomalousWindow("regression", (60, 120)), AnomalousWindow("jitter", (30, 31))),
        verdicts=(network, host),
        series=series(0, 120, 60, 1.6),
        rank_phases=rank_phases(16, {(5, "forward-compute"): 1.25}),
    )


@as_diagnosed
def healthy() -> Diagnosis:
    return Diagnosis(
        job_id="llama-70b-0411",
        ranks=64,
        state="healthy",
        steps=(1000, 1200),
        series=series(1000, 1200),
        rank_phases=rank_phases(64, {}),
        cost={"processor_cpu": 0.02},
        periods=(saves(),),
    )


def saves() -> Period:
    return Period(
        unit="steps", every=25.0, either=30.4, hits=8, slots=8, chance=2.1e-7, steps=(1024, 1199),
        at=tuple(range(1024, 1200, 25)), excess_ns=390.0 * MS, lost_fraction=0.0128,
        phase="outside-phases", source="checkpoint",
        because="stacks show it in 24 % of these steps' time, and in 0 % between them",
        says="every 25 steps (or every 30.4 s), steps take 390 ms longer in outside-phases (8 of 8 "
        "times from step 1024): checkpoint", advice="save less often, or asynchronously",
    )  # fmt: skip


@as_diagnosed
def one_rank() -> Diagnosis:
    return Diagnosis(
        job_id="laptop",
        ranks=1,
        state="healthy",
        steps=(0, 40),
        series=series(0, 40),
        rank_phases=rank_phases(1, {}),
        skipped=(Skipped("peers", "one rank has no peers to compare with"),),
    )


@as_diagnosed
def empty() -> Diagnosis:
    return Diagnosis(job_id="just-started", ranks=0, state="healthy")


def rank_times(ranks: int, slow: int | None = None) -> tuple[RankTime, ...]:
    """Steps of 1.2 s; where one rank computes 0.4 s longer, the others wait for it that long."""
    step = int((1.2 if slow is None else 1.6) * S)

    def one(rank: int) -> RankTime:
        compute = int((1200 if rank == slow else 800) * MS * wobble(rank))
        host, gaps, copies, hidden = 12 * MS, int(2.3 * MS), int(0.9 * MS), 61 * MS
        exposed = step - compute - host - gaps - copies
        return RankTime(rank, compute, exposed, hidden, copies, host, gaps, 0)

    return tuple(one(rank) for rank in range(ranks))


@as_diagnosed
def traces() -> Diagnosis:
    """Of PyTorch profiler traces of four ranks on two hosts."""
    verdict = Verdict(
        kind="slowdown",
        cause="compute",
        summary="rank 2 computes 1.7x slower than its peers in backward-compute from step 3",
        advice="compare what rank 2 executes in backward-compute with a peer: `py-spy record` its "
        "process, check clocks and temperature of its device",
        ranks=(2,),
        hosts=("host-001",),
        phase="backward-compute",
        kernels=("sm80_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x128x64_cublas",),
        steps=(3, 8),
        time_ns=(T0, T0 + int(9.6 * S)),
        slowdown=1.7,
        lost_fraction=0.24,
        confidence=0.96,
        victims=3,
        evidence=(
            Evidence("argus-l2", "own time 400 ms per step above its peers", {"excess_ns": 4e8}),
            Evidence("breakdown", "per step it spends longer than its peers: 400 ms computing"),
        ),
    )
    return Diagnosis(
        job_id="traces",
        ranks=4,
        state="slow",
        steps=(3, 8),
        windows=(AnomalousWindow("slow", (3, 8)),),
        verdicts=(verdict,),
        clocks=(ClockFit("host-000", 0, 0.0, 0), ClockFit("host-001", 214 * MS, 1.7, 2)),
        skipped=(
            Skipped("stacks", "no table stacks", unrecorded=True),
            Skipped("processor", "no table hardware"),
        ),
        series=StepSeries(tuple(range(3, 9)), tuple(int(1.6 * S * wobble(s)) for s in range(6))),
        rank_phases=rank_phases(4, {(2, "backward-compute"): 1.7}),
        rank_times=rank_times(4, slow=2),
        last_arrivals=(
            LastArrival("dp-0", "AllReduce", 2, 17, 18, int(398.2 * MS)),
            LastArrival("tp-1", "AllGather", 3, 101, 288, 16 * MS),
        ),
    )


@as_diagnosed
def one_trace() -> Diagnosis:
    """Of a trace of one rank, whose host is late with launching kernels."""
    time = RankTime(0, 640 * MS, 0, 0, int(4.2 * MS), 550 * MS, int(5.8 * MS), 0)
    return Diagnosis(
        job_id="rank-0",
        ranks=1,
        state="healthy",
        steps=(5, 6),
        series=series(5, 6),
        rank_phases=rank_phases(1, {}),
        rank_times=(time,),
        skipped=(Skipped("argus-l2", "one rank has no peers"),),
    )


@as_diagnosed
def many_traces() -> Diagnosis:
    """Of traces of 64 ranks in which nothing is wrong, but much is communicated."""
    return Diagnosis(
        job_id="fsdp-64",
        ranks=64,
        state="healthy",
        steps=(10, 14),
        series=series(10, 14),
        rank_phases=rank_phases(64, {}),
        rank_times=rank_times(64),
        last_arrivals=(LastArrival("dp-0", "ReduceScatter", 41, 29, 160, 14 * MS),),
    )


SAMPLES = {
    "slow_rank": slow_rank,
    "data_loading": data_loading,
    "gc": gc,
    "hang": hang,
    "code_all_ranks": code_all_ranks,
    "two_culprits": two_culprits,
    "healthy": healthy,
    "one_rank": one_rank,
    "traces": traces,
    "one_trace": one_trace,
    "many_traces": many_traces,
    "empty": empty,
}
