"""Pipelines among the groups whose name says nothing, by what their members do.

Before PyTorch 2.4 a trace lists the members of a group without a word about its purpose. A group in
which ranks only send and receive is a pipeline, or a ring, as of attention over a long sequence.
Without the stages, ranks of the first one would be odd for loading data, which no other stage does.

Ours: a pipeline has ends. The first and the last member send and receive less than each member
between them; in a ring all do the same. Of two members, both are ends: in a pipeline they also
send, or receive, alone, while it fills and empties, as well as both at once. In a ring of batched
operators nobody does the first, in a program without batches nobody does the second, and then the
group stays unknown. Megatron, DeepSpeed and torch list the members in the order of stages.

Cost: one pass over `comm_ops`. Cannot see: pipelines of which some members were not recorded.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from stepscope.formats.kineto.calls import P2P
from stepscope.trace import Job
from stepscope.window import Ints, Table, numbered

LEAST = {"other": 1, "world": 2}
"""More members than this, by the kinds of groups that are known by their members alone. Of a job of
two ranks, each is the only one that the other can be compared with. Our choice."""


def with_pipelines(job: Job, comm: Table) -> Job:
    """The job, with the kind of its groups that show themselves to be pipelines."""
    if job.groups_of_kind("pp"):
        return job
    of_group = comm.strings("group")
    found = {group.id for group in job.groups if len(group.ranks) > LEAST.get(group.kind, math.inf)
             and _is_pipeline(comm.take(of_group.equals(group.id)), group.ranks)}  # fmt: skip
    groups = (replace(one, kind="pp") if one.id in found else one for one in job.groups)
    return replace(job, groups=tuple(groups))


def _is_pipeline(comm: Table, ranks: tuple[int, ...]) -> bool:
    """Whether these operators of a group are those of a pipeline."""
    if not len(comm) or not comm.strings("op").equals(*P2P).all():
        return False
    rank = comm.ints("rank")
    messages = np.array([int((rank == one).sum()) for one in ranks])
    if len(ranks) == 2:
        return bool(messages.all()) and _fills_and_exchanges(comm)
    return bool(messages.all() and messages[[0, -1]].max() < messages[1:-1].min())


def _fills_and_exchanges(comm: Table) -> bool:
    """Whether ranks send or receive alone as well as both in one kernel."""
    directions = _directions(comm)
    return bool((directions == 1).any() and (directions == len(P2P)).any())


def _directions(comm: Table) -> Ints:
    """For each kernel, whether it sends, receives, or both: 1 or 2."""
    kernel = numbered(comm.ints("rank"), comm.ints("start_ns"))
    sends = comm.strings("op").equals("Send")
    size = int(kernel.max()) + 1
    each = [np.bincount(kernel[rows], minlength=size) > 0 for rows in (sends, ~sends)]
    return np.asarray(each[0].astype(np.int64) + each[1])
