"""The host whose link is slow, in a recording of devices that has too few steps for `slow_link`.

Fault: a host whose adapter or cable moves data slowly, in profiler traces of a few steps.
Papers: Holmes (2025), section 4.4, and VenusTrace (2025), section 4, compare the durations of
operators, which contain waiting.
What differs: a transfer is the shortest duration of its members (`network.rates`), and what moves
between the same hosts is one observation, for it shares their links. Observations are compared
with those of the same kind, size, and numbers of members and hosts, and explained by hosts as over
TCP (`network.slow_hosts`). Racks explain them, too: hosts that follow one another may be nearer.
Cost: one match of `comm_ops`. Cannot see: a link that all transfers of a kind pass, as in data
parallel jobs; sends that share a kernel with those to other ranks; and two slow hosts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.account.belief import odds
from stepscope.diagnose.detect.links.slow_link import slow_links
from stepscope.diagnose.detect.links.slow_transfers import CLEAR, LEAST_SCORE, RARE_BITS
from stepscope.diagnose.finding import Decision, Device, SlowLink
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.network.delay import idle_ns, longest_delay
from stepscope.diagnose.network.edges import Place
from stepscope.diagnose.network.on_devices import on_devices
from stepscope.diagnose.network.rates import LEAST_BYTES, DeviceTransfers, device_transfers
from stepscope.diagnose.network.slow_hosts import FAST, MOST, PATH, UNEQUAL, likelihood
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HIGHEST_SCORE
from stepscope.diagnose.words.advice import list_ranks
from stepscope.window import Floats, Ints, Mask, gathered, stable_order

FEW_STEPS = 20
"""In more steps `slow_link` sees what is worth a verdict. As many as L2 needs. Our choice."""
LEAST = 4
"""Fewer transfers of a kind between the same hosts show no level. Statistics."""
LEAST_HOSTS = 3
"""Of two hosts each has the same transfers. Statistics."""
RESOLUTION_NS = 10_000
"""Kernels of a collective end within this time of each other. Measured on real data."""
AT_ONCE = 2000
"""Places whose transfers are compared at a time."""

NOBODY_BUSY = np.zeros(1)
"""Devices move data themselves: processors that are busy do not slow down all transfers."""


class BriefLinks:
    """The host through which data moves slower than through others, in few steps."""

    name = "slow-link-brief"
    needs = Needs("comm_ops.end_ns", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[SlowLink]:
        hosts = [host.name for host in job.window.job.hosts]
        brief = len(job.line.steps) - job.line.warm_up < FEW_STEPS
        if len(hosts) < LEAST_HOSTS or not brief or not on_devices(job):
            return
        moved = device_transfers(job)
        if moved is None:
            return
        large = moved.unsized | (moved.size_bytes >= LEAST_BYTES)
        seen = _compared(job, moved, moved.alone & large)
        blamed = _blamed(hosts, seen)
        if blamed is None or _has_culprit(job, so_far, blamed.host) or slow_links(job, {}):
            return
        yield _finding(job, seen, blamed)


@dataclass(frozen=True)
class _Seen:
    """What moves between the same hosts in operators of one kind."""

    hosts: frozenset[str]
    places: tuple[Place, ...]
    per_step: Floats
    """How many operators each place has in a step."""
    took_ns: float
    """The usual time of one of them."""
    usual_ns: float
    """The same between other hosts."""

    @property
    def slow(self) -> float:
        """The logarithm of how slow it is."""
        return float(np.log((self.took_ns + RESOLUTION_NS) / (self.usual_ns + RESOLUTION_NS)))


@dataclass(frozen=True)
class _Blamed:
    host: str
    chance: float
    """That it is this host, if any is to blame."""
    bits: float
    """Evidence that one is to blame."""


@dataclass(frozen=True)
class _Suspect:
    """What may explain that data moves slowly between some hosts."""

    parts: tuple[frozenset[str], ...]
    """What has members in several of these is slow; of a host, whatever passes it."""
    host: str = ""
    prior: float = 1.0

    def explains(self, member: Mask, at: Mapping[str, int]) -> Mask:
        """Which of the sets of several hosts, `[set, host]`, it explains."""
        if self.host:
            return np.asarray(member[:, at[self.host]])
        within = [member[:, at[next(iter(part))]] if len(part) == 1
                  else member[:, [at[name] for name in part]].any(axis=1)
                  for part in self.parts]  # fmt: skip
        return np.asarray(np.sum(within, axis=0) > 1)


def _compared(job: Observed, moved: DeviceTransfers, chosen: Mask) -> list[_Seen]:
    """All that can be compared: what moves between several hosts, as elsewhere."""
    steps = max(len(job.line.steps) - job.line.warm_up, 1)
    alike: dict[tuple[object, ...], dict[frozenset[str], list[tuple[Place, float, int]]]] = {}
    for place, kind, usual_ns, count in _by_place(moved, chosen):
        if None in place.hosts:
            continue
        hosts = frozenset(filter(None, place.hosts))
        if len(hosts) > 1:
            shape = (kind, place.is_pair, len(place.members), len(hosts))
            row = place, usual_ns, count
            alike.setdefault(shape, {}).setdefault(hosts, []).append(row)
    enough = ({hosts: of for hosts, of in same.items() if sum(row[2] for row in of) >= LEAST}
              for same in alike.values())  # fmt: skip
    return [one for same in enough if len(same) > 1 for one in _against_equals(same, steps)]


def _by_place(
    moved: DeviceTransfers, chosen: Mask
) -> Iterator[tuple[Place, int, float, int]]:  # fmt: skip
    """Each place and kind of its transfers, how long the faster ones take, and their number; a few
    places at a time, which needs a tenth of the memory."""
    for first in range(0, len(moved.places), AT_ONCE):
        here = chosen & (moved.place >= first) & (moved.place < first + AT_ONCE)
        if here.any():
            yield from _by_some_place(moved, np.flatnonzero(here))


def _by_some_place(
    moved: DeviceTransfers, here: Ints
) -> Iterator[tuple[Place, int, float, int]]:  # fmt: skip
    place, kind = gathered(moved.place, here), gathered(moved.kind, here)
    key = place * np.int64(kind.max(initial=0) + 1) + kind
    order = stable_order(key)
    begins = np.flatnonzero(np.diff(key[order], prepend=-1))
    first, counts = order[begins], np.diff(begins, append=order.size)
    fast = _fast(gathered(moved.transfer_ns, here)[order], begins, counts)
    columns = (place[first], kind[first], fast, counts)
    for at, of_kind, took, count in zip(*(one.tolist() for one in columns), strict=True):
        yield moved.places[at], of_kind, took, count


def _fast(took: Floats, begins: Ints, counts: Ints) -> Floats:
    """The time of the faster ones in each section; sections of equal length at once."""
    fast = np.empty(begins.size)
    for count in np.unique(counts).tolist():
        same, at = np.flatnonzero(counts == count), int(FAST * count)
        rows = took[begins[same][:, None] + np.arange(count)]
        rows.partition(at, axis=1)
        fast[same] = rows[:, at]
    return fast


def _against_equals(
    same: dict[frozenset[str], list[tuple[Place, float, int]]], steps: int
) -> Iterator[_Seen]:
    """Operators of one kind, between other hosts each; the faster ones of them are usual."""
    took = {hosts: stats.median(np.array([row[1] for row in of])) for hosts, of in same.items()}
    usual = float(np.quantile(list(took.values()), FAST, method="lower"))
    for hosts, of in same.items():
        places, _, often = zip(*of, strict=True)
        yield _Seen(hosts, places, np.array(often) / steps, took[hosts], usual)


def _blamed(hosts: Sequence[str], seen: Sequence[_Seen]) -> _Blamed | None:
    """The host that explains best what is slow; None where racks, or nobody, explain it as well."""
    if not seen:
        return None
    suspects = [*_hosts(seen), *_racks(hosts)]
    at = {name: column for column, name in enumerate(hosts)}
    member = np.zeros((len(seen), len(hosts)), np.bool_)
    for row, each in enumerate(seen):
        member[row, [at[name] for name in each.hosts]] = True
    passes = np.array([one.explains(member, at) for one in suspects], np.float64)
    slow = np.clip([each.slow for each in seen], -MOST, MOST)
    total = likelihood(slow, passes, UNEQUAL, NOBODY_BUSY)
    total += np.log([one.prior for one in suspects]) - np.log(len(suspects))
    guilty = np.array([bool(one.host) for one in suspects])
    best = int(np.argmax(np.where(guilty, total, -np.inf)))
    weight = np.exp(total - total[best])
    other = max(float(weight[~guilty].max(initial=0.0)), float(np.exp(-total[best])))
    bits = float(np.log2(weight[guilty].sum() / other))
    return _Blamed(suspects[best].host, 1 / float(weight[guilty].sum()), bits)


def _hosts(seen: Sequence[_Seen]) -> Iterator[_Suspect]:
    """Every host that anything passes, and, as rarely slow as racks, every connection of two."""
    for host in sorted(frozenset().union(*(each.hosts for each in seen))):
        yield _Suspect((), host)
    for two in {each.hosts for each in seen if len(each.hosts) == 2}:
        yield _Suspect(tuple(frozenset({one}) for one in sorted(two)), prior=PATH)


def _racks(hosts: Sequence[str]) -> Iterator[_Suspect]:
    """Hosts in groups of two, four and so on that follow one another."""
    size = 2
    while size < len(hosts):
        parts = (frozenset(hosts[at : at + size]) for at in range(0, len(hosts), size))
        yield _Suspect(tuple(parts), prior=PATH)
        size *= 2


def _has_culprit(job: Observed, so_far: SoFar, host: str) -> bool:
    """Whether a rank of the host is slow itself: it moves data slowly, too."""
    return any(job.window.host_of(int(job.line.ranks[one.row])) == host for one in so_far.culprits)


def _finding(job: Observed, seen: Sequence[_Seen], blamed: _Blamed) -> SlowLink:
    line, first, stop = job.line, job.line.warm_up, len(job.line.steps)
    through = [each for each in seen if blamed.host in each.hosts]
    worst = max(through, key=lambda each: each.took_ns / max(each.usual_ns, 1.0))
    step_ns = max(stats.median(line.job_period_ns[first:]), 1.0)
    lost = _lost_ns(job, through)
    share = min(lost / step_ns, 1.0)
    # observations are independent, so all bits count, and not half of them
    sure, ratio = odds(2 * (blamed.bits - RARE_BITS), share), worst.took_ns / max(worst.usual_ns, 1)
    named = blamed.chance >= CLEAR and sure >= LEAST_SCORE
    ranks = tuple(r for r in job.window.ranks if named and job.window.host_of(r) == blamed.host)
    place = worst.places[0]
    detail = (
        f"after the last arrival data moves for {worst.took_ns / 1e6:.2f} ms in {place.group} "
        f"({list_ranks(place.members)}), and for {worst.usual_ns / 1e6:.2f} ms "
        f"between other hosts; {blamed.host} explains that with a probability of "
        f"{blamed.chance:.2f}"
    )
    return SlowLink(
        BriefLinks.name, "network", detail, ranks,
        devices=(Device("nic", f"{blamed.host}/{job.adapter_of(blamed.host)}",
                        round(blamed.chance, 3)),),
        steps=line.span(first, stop), time_ns=line.span_ns(first, stop), slowdown=ratio,
        lost_ns=lost, lost_fraction=share,
        score=min(sure * (blamed.chance if named else 1.0), HIGHEST_SCORE),
        where=f"through {blamed.host} than elsewhere" if named else "between some hosts",
        columns=tuple(range(first, stop)), victims=len(job.window.ranks) - len(ranks),
        values={"bits": blamed.bits, "lost_ns": lost},
        decisions=(Decision("slow-link-brief", True, blamed.bits, RARE_BITS, detail),),
    )  # fmt: skip


def _lost_ns(job: Observed, through: Sequence[_Seen]) -> float:
    """By the rank whose transfers exceed their usual time the most, per step."""
    places = [place for each in through for place in each.places]
    excess = [max(each.took_ns - each.usual_ns, 0.0) * often
              for each in through for often in each.per_step.tolist()]  # fmt: skip
    columns = np.arange(len(job.line.steps)) >= job.line.warm_up
    costliest = places[int(np.argmax(excess))]
    longest = longest_delay(places, np.array(excess)[:, None])
    return min(longest, idle_ns(job, costliest.members, columns))
