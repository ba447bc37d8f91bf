"""Process groups of jobs whose `job.json` lists none, derived from which ranks call operators
together.

Members of a group are the ranks that call operators on it. Its kind is what its name begins with
(`tp-0`), as the contract names groups. Elsewhere structure tells: sends and receives are between
pipeline stages; experts exchange tokens by all-to-all; gradients are reduced in backward and later,
so that a group that reduces within forward shares layers (`tp`); a group with members of several
stages does no equal work. A job with one group alone needs none of this.

Cost: one pass over `comm_ops`, and sorting the operators of one step.
Cannot see: members that never called anything, and which groups share layers where no phase is
called forward.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from stepscope.diagnose.numeric.intervals import axis_over
from stepscope.diagnose.numeric.linked import linked
from stepscope.diagnose.prepare.matching import POINT_TO_POINT, REDUCTIONS, arrivals
from stepscope.diagnose.thresholds import HALF
from stepscope.trace import FORWARD, Job, ProcessGroup
from stepscope.window import NULL, Ints, Mask, Table, Window, distinct, union

_KIND = re.compile(r"(tp|cp|dp|pp|ep|edp|mp|embedding|world)(?![a-z])")


NUMBERED = ("pp", "dp", "cp", "tp")
"""Kinds of groups by how far apart the ranks of one are numbered, the farthest first."""
ACROSS_STAGES = "embedding"
"""The kind of groups with members in several stages. They do no equal work, and meet outside of the
passes: Megatron's model parallel group (`mp`) reduces the norm of gradients."""


def with_groups(window: Window) -> Window:
    """The window whose job lists the groups that called operators, if it lists none."""
    if window.job.groups:
        return _with_stages(window)
    comm = window.table("comm_ops")
    found = as_numbered(window.job) if comm is None else _Calls.of(window, comm).groups()
    if len(found) < 2:
        return window
    return Window(replace(window.job, groups=tuple(found)), window.tables)


def as_numbered(job: Job) -> list[ProcessGroup]:
    """The groups of a pipeline by the usual order of ranks; none where its sizes do not fit."""
    sizes = [job.parallelism.get(kind, 1) for kind in NUMBERED]
    if sizes[0] < 2 or prod(sizes) != job.world_size:
        return []
    ranks = np.arange(job.world_size).reshape(sizes)
    return [ProcessGroup(f"{kind}-{number}", kind, tuple(members))
            for at, (kind, size) in enumerate(zip(NUMBERED, sizes, strict=True)) if size > 1
            for number, members in enumerate(np.moveaxis(ranks, at, -1).reshape(-1, size).tolist())
            ]  # fmt: skip


def _with_stages(window: Window) -> Window:
    """The window whose model parallel groups across stages have a kind that says so."""
    stage = window.job.stage_by_rank
    apart = {one.id for one in window.job.groups_of_kind("mp")
             if len({stage.get(rank, 0) for rank in one.ranks}) > 1}  # fmt: skip
    if not apart:
        return window
    groups = tuple(replace(one, kind=ACROSS_STAGES) if one.id in apart else one
                   for one in window.job.groups)  # fmt: skip
    return Window(replace(window.job, groups=groups), window.tables)


@dataclass(frozen=True)
class _Calls:
    """The operators of a job, and those of one step in its middle."""

    window: Window
    comm: Table
    step: Table

    @classmethod
    def of(cls, window: Window, comm: Table) -> _Calls:
        return cls(window, comm, of_middle_step(comm) if comm.has("step") else comm)

    def groups(self) -> list[ProcessGroup]:
        """Pipelines by their stages, and all groups that call collectives."""
        pipelines, members = self._pipelines(), self._members()
        sends, experts = self._mostly(*POINT_TO_POINT), self._mostly("AllToAll")
        within = self._reduces_in_forward()
        collective = [code for code in members if not sends[code]]
        large = max((len(members[code]) for code in collective), default=0)
        large = large if len(collective) > 1 else large + 1
        stage = {rank: at for one in pipelines for at, rank in enumerate(one.ranks)}
        found = list(pipelines)
        for code in collective:
            name, ranks = self.comm.strings("group").values[code], members[code]
            named = _KIND.match(name.lower())
            if named is not None:
                kind = named.group(1)
            elif experts[code]:
                kind = "ep"
            elif len(ranks) == large == len(self.window.ranks):
                kind = "world"
            elif len({stage.get(rank, 0) for rank in ranks}) > 1:
                kind = ACROSS_STAGES
            else:
                kind = "tp" if within[code] else self._rest
            found.append(ProcessGroup(name, kind, ranks))
        return _with_replicas_of_experts(found)

    @cached_property
    def _rest(self) -> str:
        """The kind of a group that does not reduce in forward: replicas, if it is known where
        forward is."""
        phases = self.window.table("phases")
        known = phases is not None and FORWARD in phases.strings("phase").values
        return "dp" if known else "other"

    def _members(self) -> dict[int, tuple[int, ...]]:
        """The ranks that called each group, by the group's code."""
        code, rank = self.comm.strings("group").codes.astype(np.int64), self.comm.ints("rank")
        known = (code >= 0) & (rank >= 0)
        wide = int(rank.max(initial=0)) + 1
        return _lists(distinct(code[known] * wide + rank[known]), wide)

    def _mostly(self, *ops: str) -> Mask:
        """By code, whether most of a group's operators are these."""
        groups = self.comm.strings("group")
        code, size = groups.codes + 1, len(groups.values) + 1
        share = np.bincount(code, weights=self.comm.strings("op").equals(*ops), minlength=size)
        most: Mask = share > HALF * np.maximum(np.bincount(code, minlength=size), 1)
        return most[1:]

    def _reduces_in_forward(self) -> Mask:
        """By code, whether most of a group's reductions in the step begin within forward."""
        size = len(self.comm.strings("group").values)
        phases, calls = self.window.table("phases"), self.step
        calls = calls.take(calls.strings("op").equals(*REDUCTIONS))
        if phases is None or not phases.has("step", "start_ns", "duration_ns") or not len(calls):
            return np.zeros(size, np.bool_)
        forward = phases.take(phases.strings("phase").equals(FORWARD))
        forward = forward.take(np.isin(forward.ints("step"), distinct(calls.ints("step"))))
        begin, moment = forward.ints("start_ns"), arrivals(calls)
        end = begin + forward.ints("duration_ns")
        axis = axis_over(max(self.window.ranks) + 1, begin, end, moment)
        if axis is None or not len(forward):
            return np.zeros(size, np.bool_)
        place = forward.ints("rank")
        inside = union(axis.at(place, begin), axis.at(place, end))
        held = inside.holds(axis.at(calls.ints("rank"), moment)) & (moment != NULL)
        code = calls.strings("group").codes[held]
        return np.bincount(code[code >= 0], minlength=size) > 0

    def _pipelines(self) -> list[ProcessGroup]:
        """Ranks that send to each other, in stage order."""
        sends = self.step.take(self.step.strings("op").equals(*POINT_TO_POINT))
        if not len(sends) or not sends.has("peer", "seq"):
            return []
        rank, peer = sends.ints("rank"), sends.ints("peer")
        known = (rank >= 0) & (peer >= 0)
        sends, rank, peer = sends.take(known), rank[known], peer[known]
        if not len(sends):
            return []
        callers, at = np.unique(rank, return_index=True)
        group = sends.strings("group")
        names = {int(one): group[int(row)] or "pp" for one, row in zip(callers, at, strict=True)}
        first, sent = _first_calls(sends)
        chains = [one for one in linked(rank, peer) if self._run_one_program(one)]
        several = len({_name(one, names) for one in chains}) < len(chains)
        return [
            ProcessGroup(f"{_name(ranks, names)}{f'/{at}' if several else ''}", "pp",
                         _in_order(ranks, first, sent))
            for at, ranks in enumerate(chains)
        ]  # fmt: skip

    def _run_one_program(self, ranks: Sequence[int]) -> bool:
        """Whether all of them run some phase: stages share passes. Ranks that generate samples for
        others which train share none with these, and wait for them as no stage does."""
        theirs = self._programs[:, [one for one in ranks if one < self._programs.shape[1]]]
        theirs = theirs[:, theirs.any(axis=0)]
        return not theirs.size or bool(theirs.all(axis=1).any())

    @cached_property
    def _programs(self) -> Mask:
        """Which phases each rank was seen in, `[phase, rank]`."""
        phases = self.window.table("phases")
        if phases is None:
            return np.zeros((0, 0), np.bool_)
        rank, name = phases.ints("rank"), phases.strings("phase")
        known = (rank >= 0) & (name.codes >= 0)
        seen = np.zeros((len(name.values), int(rank.max(initial=0)) + 1), np.bool_)
        seen[name.codes[known], rank[known]] = True
        return seen


def of_middle_step(table: Table) -> Table:
    """The rows of the step in the middle of the recording."""
    numbers = distinct(table.ints("step"))
    if not numbers.size:
        return table
    return table.take(table.ints("step") == numbers[numbers.size // 2])


def _name(ranks: Sequence[int], names: Mapping[int, str]) -> str:
    """What recorded members call their group; not all of them need to be recorded."""
    return next((names[rank] for rank in ranks if rank in names), "pp")


def _with_replicas_of_experts(groups: list[ProcessGroup]) -> list[ProcessGroup]:
    """If experts are spread over ranks, replicas of them are a part of the other replicas."""
    if not any(one.kind == "ep" for one in groups):
        return groups
    whole: dict[int, frozenset[int]] = {}
    for one in groups:
        for rank in one.ranks if one.kind == "dp" else ():
            whole[rank] = max(whole.get(rank, frozenset()), frozenset(one.ranks), key=len)
    return [replace(one, kind="edp") if one.kind == "dp" and one.ranks
            and frozenset(one.ranks) < whole[one.ranks[0]] else one for one in groups]  # fmt: skip


def _lists(pairs: Ints, wide: int) -> dict[int, tuple[int, ...]]:
    """The second of each pair, by the first; a pair is `first * wide + second`."""
    if not pairs.size:
        return {}
    first, second = pairs // wide, pairs % wide
    codes, starts = np.unique(first, return_index=True)
    return {int(code): tuple(part.tolist())
            for code, part in zip(codes, np.split(second, starts[1:]), strict=True)}  # fmt: skip


def _first_calls(sends: Table) -> tuple[frozenset[int], Mapping[int, int]]:
    """Ranks whose first call of the step is a send; and to whom each rank sends first."""
    rank, sending = sends.ints("rank"), sends.strings("op").equals("Send")
    order = np.lexsort((~sending, sends.ints("seq"), rank))
    rank, sending, peer = rank[order], sending[order], sends.ints("peer")[order]
    _, first = np.unique(rank, return_index=True)
    begins = frozenset(rank[first[sending[first]]].tolist())
    ranks, first = np.unique(rank[sending], return_index=True)
    return begins, dict(zip(ranks.tolist(), peer[sending][first].tolist(), strict=True))


def _in_order(
    ranks: Sequence[int], begins: frozenset[int], sent: Mapping[int, int]
) -> tuple[int, ...]:
    """Stages in the order in which forward passes through them: the first one sends before it
    receives, and each sends first to the next one."""
    starts = [rank for rank in ranks if rank in begins]
    chain = starts[:1]
    while chain and sent.get(chain[-1], chain[-1]) not in chain:
        chain.append(sent[chain[-1]])
    return tuple(chain) if len(chain) == len(ranks) else tuple(ranks)
