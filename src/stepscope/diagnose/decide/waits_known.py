"""Whether it is known who waits for whom: operators with all their members, receives with ends, and
the peers of sends."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.graph.replay import CONNECTED
from stepscope.diagnose.graph.step_graph import StepGraph
from stepscope.diagnose.numeric.linked import linked
from stepscope.diagnose.observed import Observed, once
from stepscope.diagnose.prepare.matching import POINT_TO_POINT
from stepscope.window import NULL, Ints


def connects(job: Observed, graph: StepGraph) -> bool:
    """Whether the graph shows who waits for whom: its operators have all of their members.

    Where the peers of sends are unknown, or members were not recorded, nobody in it seems to wait
    for the culprit, and healing it seems to win nothing. A pipeline has many more collectives than
    transfers between stages, and waits in these.
    """
    sizes = {group.id: len(group.ranks) for group in job.window.job.groups}
    names = graph.comm.strings("group")
    size = np.array([*(sizes.get(name, 2) for name in names.values), 2])[names.codes]
    pairs = graph.comm.strings("op").equals(*POINT_TO_POINT)
    members = np.diff(graph.bounds)[graph.op]
    whole = members >= np.where(pairs, 2, size)
    kinds = (whole[kind] for kind in (pairs, ~pairs) if kind.any())
    return all(kind.mean() >= CONNECTED for kind in kinds) and receives_known(job)


def receives_known(job: Observed) -> bool:
    """Whether most receives have an end: what was posted with others may be waited for with them.

    Else a rank that waits in them seems to work, and healing the one it waits for wins nothing.
    """
    comm = job.window.table("comm_ops")
    if comm is None or not comm.has("end_ns"):
        return True
    receives = comm.strings("op").equals("Recv")
    count = int(np.count_nonzero(receives))
    ended = int(np.count_nonzero(receives & (comm.ints("end_ns") != NULL)))
    return ended / count >= CONNECTED if count else True


def peers_known(job: Observed) -> bool:
    """Whether it is known from whom most receives are, in which ranks wait for each other."""
    comm = job.window.table("comm_ops")
    if comm is None:
        return True
    receives = comm.strings("op").equals("Recv")
    if not receives.any():
        return True
    return comm.has("peer") and bool((comm.ints("peer")[receives] >= 0).mean() >= CONNECTED)


@once
def exchanging(job: Observed) -> list[Ints]:
    """Rows of ranks that send to each other, as in rings of context parallelism: who waits there
    for a slow one comes to the next collective as late as it does."""
    comm = job.window.table("comm_ops")
    if comm is None or not comm.has("peer"):
        return []
    sent = comm.take(comm.strings("op").equals(*POINT_TO_POINT) & (comm.ints("peer") >= 0))
    rank, peer = sent.ints("rank"), sent.ints("peer")
    parts = linked(rank, peer) if len(sent) else []
    rows = (job.line.rows(np.array(part)) for part in parts)
    return [each[each >= 0] for each in rows]


def hides_waits(job: Observed) -> bool:
    """Whether nobody recorded operators, or said which phases contain waiting."""
    return bool(job.own.phases) and not job.own.marked and "comm_ops" not in job.window.tables
