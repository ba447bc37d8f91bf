"""Truths, verdicts and small jobs for the tests of the bench."""

from __future__ import annotations

from typing import Any

from stepscope.diagnose.finding import Device, Diagnosis, Verdict
from stepscope.evaluate import ReportedVerdict, Result, Score
from stepscope.simulate import (
    FaultTruth,
    Noise,
    Parallelism,
    Scenario,
    Simulation,
    Truth,
    parse_fault,
    simulate,
)
from stepscope.trace import Host, Job

JOB = Job("job", 16, tuple(Host(f"h{at}", tuple(range(4 * at, 4 * at + 4))) for at in range(4)))


def a_fault(ranks: tuple[int, ...] = (3,), **more: Any) -> FaultTruth:
    """A slow rank, unless told otherwise."""
    known: dict[str, Any] = {
        "fault": "gpu_slow", "family": "", "kind": "slowdown", "cause": "compute",
        "hosts": tuple(dict.fromkeys(f"h{rank // 4}" for rank in ranks)), "devices": (),
        "phase": None, "function": None, "steps": (5, 9), "active_steps": 5, "slowdown": 1.5,
        "lost_ns": 1, "parameters": {}, "lost_fraction": 0.33,
    }  # fmt: skip
    return FaultTruth(ranks=ranks, **{**known, **more})


def a_verdict(
    *ranks: int, cause: Any = "compute", kind: Any = "slowdown", device: str = ""
) -> Verdict:
    devices = (Device("gpu", device, 0.9),) if device else ()
    return Verdict(kind, cause, "slow", "move it", ranks=ranks, devices=devices, confidence=0.9)


def a_diagnosis(*verdicts: Verdict) -> Diagnosis:
    return Diagnosis("job", 16, "slow" if verdicts else "healthy", verdicts=verdicts)


def a_truth(*faults: FaultTruth) -> Truth:
    return Truth("job", 0, faults)


def a_result(id: str = "gpu_slow / 16 ranks", **score: Any) -> Result:
    """One job in which the culprit was found, unless told otherwise."""
    known = {"costly": True, "hangs": False, "alarms": 0, "found": True, "complete": True,
             "cause": True, "device": False}  # fmt: skip
    return Result(
        id, "gpu_slow", "ARGUS Table 6: GPU frequency throttling", 16, 3, 0, "gpu_slow at 3", 1.5,
        "slow", (ReportedVerdict("slowdown", "compute", (3,), (), "rank 3 is slow"),),
        Score(**{**known, **score}), 20, 0.1,
    )  # fmt: skip


def a_job(*faults: str, steps: int = 12) -> Simulation:
    """Sixteen ranks on two hosts, with a pipeline of two stages."""
    return simulate(
        Scenario(
            ranks=16, steps=steps, seed=1, parallelism=Parallelism(tp=2, pp=2, microbatches=2),
            noise=Noise(warm_up=()), faults=tuple(map(parse_fault, faults)), detail="normal",
        )
    )  # fmt: skip
