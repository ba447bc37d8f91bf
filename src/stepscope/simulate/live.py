"""Plays back a simulated job as its collectors would see it live: slices of new rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stepscope.simulate.cost import Span
from stepscope.simulate.engine import NEVER
from stepscope.simulate.moments import moments
from stepscope.simulate.record import Recorder
from stepscope.simulate.record.moment import Moment
from stepscope.simulate.run import prepare, watched_until
from stepscope.simulate.scenario import Scenario
from stepscope.window import Table

LOOK_NS = 1_000_000_000
"""How often collectors look at a job that has stopped, by default."""


@dataclass(frozen=True)
class Slice:
    """What is new at one moment."""

    until_ns: int
    """Time since the start of the job."""
    new: Mapping[str, Table]
    """Rows that are final."""
    now: Mapping[str, Table] = field(default_factory=dict)
    """Rows of a step that has not ended; the next slice with rows of the same table replaces
    them."""


def slices(scenario: Scenario, epoch_ns: int, look_ns: int = LOOK_NS) -> Iterator[Slice]:
    """One slice per step, and after a hang one per look, until collectors stop looking.

    Raises:
        UsageError: a fault does not fit the job.
    """
    pricing = prepare(scenario)
    recorder = Recorder(pricing.world, epoch_ns)
    lasted_ns: list[int] = []
    for moment in moments(pricing, scenario.faults):
        until_ns = watched_until(moment, lasted_ns)
        if not moment.finished:
            yield from _stuck(recorder, moment, until_ns, look_ns)
            return
        recorder.add(moment, until_ns)
        yield Slice(until_ns, recorder.drain())
        lasted_ns.append(Span(moment.start, moment.times.done).lasted_ns)


def _stuck(recorder: Recorder, moment: Moment, until_ns: int, look_ns: int) -> Iterator[Slice]:
    """The unfinished step once; after that only the stacks last longer and longer."""
    first_ns = _settled_ns(moment)
    for now_ns in range(first_ns, until_ns, look_ns):
        here = recorder.beside()
        if now_ns == first_ns:
            here.add(moment, now_ns)
        else:
            here.look(moment, now_ns)
        yield Slice(now_ns, {}, here.tables(now_ns))


def _settled_ns(moment: Moment) -> int:
    """When the last event happened."""
    times = moment.times
    known = [int(one[one < NEVER].max(initial=0)) for one in (times.issued, times.begin, times.end)]
    return max(known)
