"""Evidence of jobs as tests need it: one line per job."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.devices import JobEvidence, Used
from stepscope.devices.blame import Blame, Candidate
from stepscope.devices.constants import blamed_log_odds
from stepscope.devices.evidence import healthy as well

DAY_NS = 86_400 * 10**9
T0 = 20_000 * DAY_NS
"""2024-10-04."""
GPU, OTHER = Used("gpu", "host-0/gpu-3", "GPU-3f"), Used("gpu", "host-0/gpu-4")
NIC, CABLE = Used("nic", "host-1/nic-0"), Used("link", "host-1/nic-0--leaf-0")
HOST, CPU = Used("host", "host-0"), Used("cpu", "host-0/cpu")


def blame(
    certainty: float, *candidates: tuple[Used, float], cause: str = "compute", says: str = "slow"
) -> Blame:
    shares = tuple(Candidate(device, share) for device, share in candidates)
    named = sum(one.device.type != "host" for one in shares) or 1
    return Blame(cause, "slowdown", says, certainty, blamed_log_odds(certainty, named), shares)


def a_job(
    name: str, day: float, *blames: Blame, healthy: Sequence[Used] = (), hours: float = 10.0,
    writer: str = "host-0", ranks: int = 8, written: float = 0.0, ended: bool = True,
) -> JobEvidence:  # fmt: skip
    until = T0 + int(day * DAY_NS)
    return JobEvidence(
        name, writer, until + int(written * DAY_NS), until - int(hours * 3600e9), until, ranks,
        "slow" if blames else "healthy", blames, well(healthy, hours * 3600), (), ended,
    )  # fmt: skip
