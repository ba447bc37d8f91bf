"""All culprits among the ranks: slow for a while on end, or now and then."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.diagnose.detect.straggler_ranks import is_brief, lasting_suspects
from stepscope.diagnose.detect.transient_ranks import spiking_suspects
from stepscope.diagnose.explain.reason import Reason
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect

MOST = 0.5
"""Of a rank's blows: where a lasting slowness explains so much of them, it says more. Of two ranks'
blows: so many in the same steps, and they are of one cause."""


def find_culprits(job: Observed) -> list[Suspect]:
    """One per rank: the lasting slowness, unless its blows weigh much more."""
    lasting = lasting_suspects(job)
    if is_brief(job):
        return lasting
    weight = {one.row: one.whole_ns for one in lasting}
    struck = [one for one in spiking_suspects(job)
              if weight.get(one.row, 0.0) < MOST * one.whole_ns]  # fmt: skip
    named = {one.row for one in struck}
    return [one for one in lasting if one.row not in named] + struck


def in_common(
    job: Observed, culprits: Sequence[Suspect], reasons: Sequence[Reason]
) -> list[Reason]:
    """Why each culprit is slow; of ranks of a host that were struck at once, why most of it was.

    Blows that hit a host hit each rank in whatever it happens to do, so that each tells a part.
    """
    return [_most_weighty([(other.whole_ns, reason)
                           for other, reason in zip(culprits, reasons, strict=True)
                           if other is one or _at_once(job, one, other)])
            for one in culprits]  # fmt: skip


def _most_weighty(told: Sequence[tuple[float, Reason]]) -> Reason:
    """The heaviest reason of the cause that carries most."""
    weight: dict[str, float] = {}
    for whole_ns, reason in told:
        weight[reason.cause] = weight.get(reason.cause, 0.0) + whole_ns
    cause = max(weight, key=lambda one: weight[one])
    return max((one for one in told if one[1].cause == cause), key=lambda one: one[0])[1]


def _at_once(job: Observed, one: Suspect, other: Suspect) -> bool:
    mine, theirs = set(one.struck), set(other.struck)
    host = job.window.host_of(int(job.line.ranks[one.row]))
    return (
        len(mine & theirs) > MOST * len(mine | theirs) and host is not None
        and host == job.window.host_of(int(job.line.ranks[other.row]))
    )  # fmt: skip
