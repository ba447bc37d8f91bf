"""All culprits among the ranks: slow for a while on end, or now and then."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.diagnose.detect.straggler_ranks import Culprit, is_brief, lasting_culprits
from stepscope.diagnose.detect.transient_ranks import struck_culprits
from stepscope.diagnose.explain.reason import Reason
from stepscope.diagnose.observed import Observed

MOST = 0.5
"""Of a rank's blows: where a lasting slowness explains so much of them, it says more. Of two ranks'
blows: so many in the same steps, and they are of one cause."""


def find_culprits(seen: Observed) -> list[Culprit]:
    """One per rank: the lasting slowness, unless its blows weigh much more."""
    lasting = lasting_culprits(seen)
    if is_brief(seen):
        return lasting
    weight = {one.row: one.whole_ns for one in lasting}
    struck = [one for one in struck_culprits(seen)
              if weight.get(one.row, 0.0) < MOST * one.whole_ns]  # fmt: skip
    named = {one.row for one in struck}
    return [one for one in lasting if one.row not in named] + struck


def in_common(
    seen: Observed, culprits: Sequence[Culprit], reasons: Sequence[Reason]
) -> list[Reason]:
    """Why each culprit is slow; of ranks of a host that were struck at once, why most of it was.

    Blows that hit a host hit each rank in whatever it happens to do, so that each tells a part.
    """
    return [_most_weighty([(other.whole_ns, reason)
                           for other, reason in zip(culprits, reasons, strict=True)
                           if other is one or _at_once(seen, one, other)])
            for one in culprits]  # fmt: skip


def _most_weighty(told: Sequence[tuple[float, Reason]]) -> Reason:
    """The heaviest reason of the cause that carries most."""
    weight: dict[str, float] = {}
    for whole_ns, reason in told:
        weight[reason.cause] = weight.get(reason.cause, 0.0) + whole_ns
    cause = max(weight, key=lambda one: weight[one])
    return max((one for one in told if one[1].cause == cause), key=lambda one: one[0])[1]


def _at_once(seen: Observed, one: Culprit, other: Culprit) -> bool:
    mine, theirs = set(one.struck), set(other.struck)
    host = seen.window.host_of(int(seen.line.ranks[one.row]))
    return (
        len(mine & theirs) > MOST * len(mine | theirs) and host is not None
        and host == seen.window.host_of(int(seen.line.ranks[other.row]))
    )  # fmt: skip
