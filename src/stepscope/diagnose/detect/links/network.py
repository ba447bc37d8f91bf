"""Slow groups and network devices as findings, with the sentences that describe them.

Fault: a link, adapter, switch or NVLink that is slow, always or at times.
Papers: Holmes (2025), section 4.4, and VenusTrace (2025), section 4.
What differs: see `slow_group` and `slow_link`. Devices of slow ranks are left out.
Cost: one sort of `comm_ops`, and one union of the computing kernels.
Cannot see: what all groups of a shape suffer from the first step on, and transfers of gloo.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from stepscope.diagnose.detect.links.slow_group import SlowTransfer, slow_transfers
from stepscope.diagnose.detect.links.slow_link import BETWEEN_TWO, SlowDevice, slow_links
from stepscope.diagnose.finding import Decision, Device, SlowLink, Value
from stepscope.diagnose.graph.critical_path import shares
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.network.delay import EXPLAINS, healed_ns
from stepscope.diagnose.network.topology import PathDevice
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HIGHEST_SCORE, SCORE, SUSPECT_SCORE, score
from stepscope.diagnose.words.advice import list_ranks
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Ints

SEEN_OFTEN = 0.01
"""The score grows by this with every step in which a device was slow. Our simulator."""
UNSIZED = "; sizes were not recorded, so more data may be moved there"
LEAST_NAMED, STANDS_OUT = 0.1, 1.5
"""Devices less likely than the first value are not named, because nine in ten such names are wrong,
unless the likeliest one exceeds the next by the second value, as counters may set apart one adapter
of a large group. Our choice, our simulator."""

HALF, STRAY = 0.5, 0.1
"""From its begin on a link is slow in most steps, and at most a tenth of its slow steps, as in
`step_time.TAIL`, lie before. Our choice."""


class SlowGroups:
    """Groups in which data moves slower than in groups of the same shape."""

    name = "slow-group"
    needs = Needs("comm_ops.end_ns", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[SlowLink]:
        guilty = _guilty(job, so_far)
        for slow in slow_transfers(job):
            if not _is_slow_with(slow, guilty):
                yield _group_finding(job, slow)


class SlowLinks:
    """Network devices through which data moves slower than before, or than through others."""

    name = "slow-link"
    needs = Needs("comm_ops.end_ns", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[SlowLink]:
        guilty = _guilty(job, so_far)
        for link in slow_links(job, guilty):
            if not _is_of_culprits(link, _large(job, so_far, link)):
                yield _link_finding(job, link)


def _guilty(job: Observed, so_far: SoFar) -> dict[int, tuple[int, int]]:
    """Ranks that are slow themselves, and in which columns."""
    return {int(job.line.ranks[one.row]): (one.first, one.stop) for one in so_far.culprits}


def _large(job: Observed, so_far: SoFar, link: SlowDevice) -> frozenset[int]:
    """Slow ranks whose own excess is large enough to explain what a link costs."""
    large = (one for one in so_far.culprits if one.excess_ns >= EXPLAINS * link.lost_ns)
    return frozenset(int(job.line.ranks[one.row]) for one in large)


def _is_slow_with(slow: SlowTransfer, guilty: Mapping[int, tuple[int, int]]) -> bool:
    """Whether a group is slower than its equals only while a member is slow itself: a device that
    is slow computes and moves data slowly."""
    spans = [guilty[rank] for rank in slow.members if rank in guilty]
    return any(first <= slow.first and slow.stop <= stop for first, stop in spans)


def _is_of_culprits(link: SlowDevice, guilty: Collection[int]) -> bool:
    """Whether the device belongs to ranks that are slow themselves: a rank that shares its GPU or
    its processors with other processes moves data slowly, too. What all members of a group wait for
    after the last of them has arrived is not that member's fault."""
    likeliest = link.suspects[0][0]
    behind = link.ranks or likeliest.ranks
    if likeliest.kind in BETWEEN_TWO:
        return not set(behind).isdisjoint(guilty)
    return bool(behind) and set(behind) <= set(guilty)


def _group_finding(job: Observed, one: SlowTransfer) -> SlowLink:
    line = job.line
    lost_ns = _group_costs(job, one)
    place = f"{one.group} ({list_ranks(one.members)})"
    detail = (
        f"after the last arrival data moves for {one.own_ns / 1e6:.1f} ms per step in {place}, "
        f"and {one.usual_ns / 1e6:.1f} ms in {'groups' if one.equals > 1 else 'the group'} like it "
        f"(z {one.z:.1f}, noise reaches {one.needed:.1f})"
    )
    where = f"in {one.group} than in equal groups"
    victims = len(job.window.ranks) - len(one.culprits)
    lost_fraction = min(lost_ns / max(line.typical_ns, 1.0), 1.0)
    values: dict[str, Value] = {
        "where": where, "own_ns": one.own_ns, "usual_ns": one.usual_ns, "equals": one.equals,
        "z": one.z, "z_needed": one.needed, "victims": victims, "lost_fraction": lost_fraction,
    }  # fmt: skip
    return SlowLink(
        method="slow-group", cause="network", detail=detail, ranks=one.culprits,
        group=one.group, steps=line.span(one.first, one.stop),
        time_ns=line.span_ns(one.first, one.stop), slowdown=one.ratio, lost_ns=lost_ns,
        score=score(one.z - one.needed), where=where, lost_fraction=lost_fraction,
        victims=victims, values=values,
        decisions=(Decision("slow-group", True, one.z, one.needed, detail),),
    )  # fmt: skip


def _group_costs(job: Observed, one: SlowTransfer) -> float:
    """What a slow group costs per step: what its transfers take longer that no member computes
    beside, or what a replay saves without the excess; but no more than is on the critical path. If
    that is more than twice as much, the replay lacks an edge."""
    part, moved_ns = 1 - 1 / max(one.ratio, 1.0), one.own_ns - one.usual_ns
    shorter = np.zeros((len(one.places), len(job.line.steps)))
    shorter[:, one.first : one.stop] = part
    healed = healed_ns(job, one.places, shorter) or 0.0
    if job.path is None:
        return max(moved_ns, healed)
    path = job.path.of_steps(np.flatnonzero(np.isin(
        job.path.graph.lanes.columns, np.arange(one.first, one.stop))))  # fmt: skip
    groups = {place.group for place in one.places}
    on_path = sum(each.part for each in shares(job.window, path) if each.group in groups)
    seen_ns = part * on_path * job.line.typical_ns
    known_ns = max(min(moved_ns, seen_ns), healed)
    return seen_ns if known_ns < HALF * seen_ns else known_ns


def without_strays(columns: Ints) -> Ints:
    """The slow steps without a few at the begin that are apart from the rest.

    A link that is slow from some step on is so in most steps; one step that was slow by chance long
    before is not when that began.
    """
    left = np.arange(columns.size, 0, -1)
    mostly = left - HALF * (columns[-1] + 1 - columns)
    begin = int(np.argmax(mostly))
    return columns[begin:] if begin <= STRAY * columns.size else columns


def _link_finding(job: Observed, link: SlowDevice) -> SlowLink:
    line, columns = job.line, without_strays(link.columns)
    first, stop = int(columns[0]), int(columns[-1]) + 1
    # a single episode matters by what it cost in all steps
    of = slice(line.warm_up if link.once else first, len(line.steps) if link.once else stop)
    whole = float(np.nansum(line.job_period_ns[of]))
    where = f"{_where(link)} than {'before and after' if link.once else 'elsewhere or before'}"
    lost_fraction = min(link.lost_ns * len(columns) / max(whole, 1.0), 1.0)
    victims = len(job.window.ranks) - len(link.ranks)
    score = min(SCORE + SEEN_OFTEN * len(columns), HIGHEST_SCORE)
    more_data = _is_local(link) and not job.window.tables["comm_ops"].knows("bytes")
    values: dict[str, Value] = {
        "where": where,
        "slow_steps": len(columns),
        "places": link.slow,
        "places_through": link.through,
        "lost_ns": link.lost_ns,
        "lost_fraction": lost_fraction,
        "victims": victims,
        "counters": list(link.signs),
    }
    return SlowLink(
        method="slow-link", cause="network",
        detail=_detail(link, stop - first) + UNSIZED * more_data,
        ranks=link.ranks, group=link.place.group if _is_local(link) else None,
        devices=_devices(link), steps=line.span(first, stop), time_ns=line.span_ns(first, stop),
        slowdown=link.ratio, lost_ns=link.lost_ns,
        # of several places that share a device, chance does not pick just these
        score=min(score, SUSPECT_SCORE) if more_data else score, where=where,
        lost_fraction=lost_fraction,
        step_share=link.lost_ns / max(stats.median(line.job_period_ns[columns]), 1.0),
        columns=tuple(columns.tolist()), victims=victims, values=values,
        lost_of=line.span(of.start, of.stop) if link.once else None,
        decisions=tuple(_decisions(link)),
    )  # fmt: skip


def _decisions(link: SlowDevice) -> Iterator[Decision]:
    """That transfers were slow, and how likely each device explains it."""
    says = f"transfers take so many times as long in {link.slow} of {link.through} groups and pairs"
    yield Decision("slow-link", True, link.ratio, None, says)
    for at, (device, probability) in enumerate(link.suspects):
        says = f"probability that {device.name} explains them"
        yield Decision("likeliest-device", at == 0, probability, None, says, gate=False)


def _is_local(link: SlowDevice) -> bool:
    """Whether only one group or pair is slow, of all that use the device."""
    return link.slow == 1


def _devices(link: SlowDevice) -> tuple[Device, ...]:
    """The suspects that have a name and are likely enough; none where others that were not kept are
    as likely as the likeliest."""
    likeliest = link.suspects[0][1]
    next_one = link.suspects[1][1] if len(link.suspects) > 1 else 0.0
    stands_out = likeliest >= STANDS_OUT * next_one
    if not stands_out and 1 - sum(chance for _, chance in link.suspects) >= likeliest:
        return ()
    least = min(likeliest, LEAST_NAMED) if stands_out else LEAST_NAMED
    named = [_device(one, chance) for one, chance in link.suspects if chance >= least]
    return tuple(device for device in named if device is not None)


def _device(one: PathDevice, chance: float) -> Device | None:
    match one.kind:
        case "unknown" | "fabric" | "distance":
            return None
        case "edge" | "lane":
            return Device("link", one.name, round(chance, 3))
        case kind:
            return Device(kind, one.name, round(chance, 3))


def _where(link: SlowDevice) -> str:
    likeliest, chance = link.suspects[0]
    if likeliest.kind == "fabric":
        return "between all hosts"
    if any(one.kind in BETWEEN_TWO and one.ranks == link.ranks for one, _ in link.suspects):
        return f"between ranks {link.ranks[0]} and {link.ranks[1]}"
    if chance >= 0.5:
        return f"through {likeliest.name}"
    if link.ranks:
        return f"at {list_ranks(link.ranks)}"
    most = f"{link.place.group} ({list_ranks(link.place.members)})"
    return f"in {most}" if _is_local(link) else f"in {link.slow} groups and pairs, such as {most},"


def _detail(link: SlowDevice, steps: int) -> str:
    text = (
        f"after the last arrival data takes {link.ratio:.1f} times as long in {link.slow} of "
        f"{link.through} groups and pairs that use it, in {len(link.columns)} of {steps} steps"
    )
    likely = [f"{one.name} ({percent(chance)})" for one, chance in link.suspects]
    text += f"; suspects: {', '.join(likely)}"
    if link.left:
        text += f"; its ranks no longer send through {link.suspects[0][0].name}, but its neighbour"
    return text + (f"; counters that rose with it: {', '.join(link.signs)}" if link.signs else "")
