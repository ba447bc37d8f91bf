"""How often a processor looks at its sockets and its ranks.

To wake up costs more than most packets: 0.1 to 0.2 ms on a virtual machine (measured), and eight
ranks that send twice a second would do it sixteen times. Where they say little they are heard all
together at the next tick; and a tick is as far from the next as a step is long.

Pure, as `state` is: times come in.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.wire.frames import MAX_PACKET_BYTES

SHORTEST_SECONDS = 0.05
"""Between ticks where steps are short, or not known, and the longest while somebody waits. More
often a stopped rank was told of no sooner that could be measured, and waking up costs."""
LONGEST_SECONDS = 0.25
LAUNCHER_SECONDS = 0.2
"""The shortest between ticks where launchers tell who stops: ranks say what they do twice a second,
and a tick is a tenth of a millisecond or two."""
TICKS_PER_STEP = 5
"""Who has stopped is to be told within two steps of it; this is a tenth of them."""
STOPPED_SECONDS = 0.02
"""While a process is stopped: what is seen at a tick is what a hang is told by. Twice as often, and
to store and to look, on two cores, get in each other's way (measured)."""
BUSY_BYTES = MAX_PACKET_BYTES
"""Of one rank at one look. Its socket holds three such packets, and it must never find it full."""
BUSY_SECONDS = 5.0
"""For how long each packet is then waited for: ranks send twice a second."""


@dataclass
class Load:
    """What there is to hurry for."""

    _busy_until: float = 0.0

    def received(self, size_bytes: int, now: float) -> None:
        """How much one rank had to say at one look."""
        if size_bytes > BUSY_BYTES:
            self._busy_until = now + BUSY_SECONDS

    def is_busy(self, now: float) -> bool:
        """Whether each packet is to be taken as soon as it comes."""
        return now < self._busy_until


def tick_seconds(
    step_ns: float, *, stopped: bool, waiting: bool, launchers_report: bool = False
) -> float:
    """Until the next tick.

    Args:
        step_ns: the shortest average step of the jobs here; 0 where one is not known.
        stopped: somebody is stopped.
        waiting: operators are in flight for long.
        told: who stops next is told, and needs no looking.
    """
    if stopped:
        return STOPPED_SECONDS
    if waiting:
        return SHORTEST_SECONDS
    shortest = LAUNCHER_SECONDS if launchers_report else SHORTEST_SECONDS
    return min(max(step_ns / TICKS_PER_STEP / 1e9, shortest), LONGEST_SECONDS)
