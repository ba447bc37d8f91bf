"""The network's part of the verdict: slow devices by their ways, or slow places in a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.decide.verdict import costs_enough, network_finding, network_verdict
from stepscope.diagnose.detect.slow_group import slow_transfers
from stepscope.diagnose.detect.slow_link import SlowLink, slow_links
from stepscope.diagnose.finding import Device, Finding, Value, Verdict
from stepscope.diagnose.network.topology import PathDevice
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HIGHEST_SCORE, LEAST_COST, SCORE
from stepscope.window import Floats

SEEN_OFTEN = 0.01
"""Confidence grows so much with every step in which a device was slow."""
LEAST_NAMED, STANDS_OUT = 0.03, 1.5
"""No device is named that is less likely, but one that counters set apart: of the adapters of a
large group, say."""


@dataclass(frozen=True)
class Network:
    """What is said about the network, and what it cost in each step."""

    verdicts: tuple[Verdict, ...]
    lost_ns: Floats


def judge_network(job: Observed, culprits: Sequence[Suspect]) -> Network:
    """Verdicts on slow links. A culprit's device may move data slowly as well: one cause."""
    guilty = {int(job.line.ranks[one.row]): (one.first, one.stop) for one in culprits}
    findings = [network_finding(job, one) for one in slow_transfers(job)
                if guilty.keys().isdisjoint(one.members)]  # fmt: skip
    findings = [one for one in findings if costs_enough(one)]
    lost_ns = np.zeros(len(job.line.steps))
    for link in slow_links(job, guilty):
        if link.lost_ns >= LEAST_COST * stats.median(job.line.job_period_ns[link.columns]):
            findings.append(_link_finding(job, link))
            lost_ns[link.columns] += link.lost_ns
    return Network(tuple(network_verdict(job.window, one) for one in findings), lost_ns)


def _link_finding(job: Observed, link: SlowLink) -> Finding:
    line, columns = job.line, link.columns
    first, stop = int(columns[0]), int(columns[-1]) + 1
    whole = float(np.nansum(line.job_period_ns[first:stop]))
    values: dict[str, Value] = {
        "where": f"{_where(link)} than elsewhere or before",
        "slow_steps": len(columns),
        "places": link.slow,
        "places_through": link.through,
        "lost_ns": link.lost_ns,
        "lost_fraction": min(link.lost_ns * len(columns) / max(whole, 1.0), 1.0),
        "victims": len(job.window.ranks) - len(link.ranks),
        "counters": list(link.signs),
    }
    return Finding(
        method="links", kind="slowdown", cause="network", detail=_detail(link, stop - first),
        ranks=link.ranks, group=link.place.group if _is_local(link) else None,
        devices=_devices(link), steps=line.span(first, stop), time_ns=line.span_ns(first, stop),
        slowdown=link.ratio, lost_ns=link.lost_ns,
        confidence=min(SCORE + SEEN_OFTEN * len(columns), HIGHEST_SCORE), values=values,
    )  # fmt: skip


def _is_local(link: SlowLink) -> bool:
    """Whether one group or pair is slow, and not all that pass a device."""
    return link.slow == 1


def _devices(link: SlowLink) -> tuple[Device, ...]:
    """What has a name, and is not one of many as likely."""
    likeliest = link.suspects[0][1]
    next_one = link.suspects[1][1] if len(link.suspects) > 1 else 0.0
    least = min(likeliest, LEAST_NAMED) if likeliest >= STANDS_OUT * next_one else LEAST_NAMED
    named = [_device(one, chance) for one, chance in link.suspects if chance >= least]
    return tuple(device for device in named if device is not None)


def _device(one: PathDevice, chance: float) -> Device | None:
    match one.kind:
        case "unknown" | "fabric":
            return None
        case kind:
            return Device(kind, one.name, round(chance, 3))


def _where(link: SlowLink) -> str:
    likeliest, chance = link.suspects[0]
    if likeliest.kind == "fabric":
        return "between all hosts"
    if chance >= 0.5:
        return f"through {likeliest.name}"
    if link.ranks:
        return f"at {_ranks(link.ranks)}"
    most = f"{link.place.group} ({_ranks(link.place.members)})"
    return f"in {most}" if _is_local(link) else f"in {link.slow} groups and pairs, as {most},"


def _ranks(ranks: Sequence[int]) -> str:
    few = ", ".join(map(str, ranks[:8]))
    return f"rank {few}" if len(ranks) == 1 else f"ranks {few}" + ", …" * (len(ranks) > 8)


def _detail(link: SlowLink, steps: int) -> str:
    text = (
        f"after the last arrival data moves {link.ratio:.1f} times as long in {link.slow} of "
        f"{link.through} groups and pairs that use it, in {len(link.columns)} of {steps} steps"
    )
    likely = [f"{one.name} ({100 * chance:.0f} %)" for one, chance in link.suspects]
    text += f"; suspects: {', '.join(likely)}"
    if link.left:
        text += f"; nobody sends by {link.suspects[0][0].name} any more, but by its neighbour"
    return text + (f"; counters rose with it: {', '.join(link.signs)}" if link.signs else "")
