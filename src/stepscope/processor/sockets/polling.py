"""How often the processor polls its sockets and checks its ranks.

Waking up costs more than handling most packets: 0.1 to 0.2 ms on a virtual machine (measured), and
eight ranks that send twice a second would cause sixteen wake-ups a second. While they send little,
their packets are read together at the next tick. The time between ticks follows the step time.

Pure, like `state`: the caller passes the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.wire.frames import MAX_PACKET_BYTES

SHORTEST_SECONDS = 0.05
"""Between ticks when steps are short or unknown, and the longest time while a rank waits. Shorter
ticks did not report a stopped rank measurably earlier, and waking up costs."""
LONGEST_SECONDS = 0.25
LAUNCHER_SECONDS = 0.2
"""The shortest time between ticks when launchers report stopped processes: ranks send twice a
second, and a tick costs 0.1 to 0.2 ms."""
TICKS_PER_STEP = 5
"""A stopped rank is to be reported within two steps; a tick is a tenth of that."""
STOPPED_SECONDS = 0.02
"""While a process is stopped: a hang is detected from what is observed at each tick. At twice this
rate, storing and sampling slow each other down on two cores (measured)."""
BUSY_BYTES = MAX_PACKET_BYTES
"""From one rank in one read. Its socket holds three such packets and must never be full."""
BUSY_SECONDS = 5.0
"""For how long packets are then read as they arrive: ranks send twice a second."""


@dataclass
class Load:
    """Whether ranks send so much that packets cannot wait for the next tick."""

    _busy_until: float = 0.0

    def received(self, size_bytes: int, now: float) -> None:
        """Takes the number of bytes read from one rank in one turn."""
        if size_bytes > BUSY_BYTES:
            self._busy_until = now + BUSY_SECONDS

    def is_busy(self, now: float) -> bool:
        """Whether each packet is to be read as soon as it arrives."""
        return now < self._busy_until


def tick_seconds(
    step_ns: float, *, stopped: bool, waiting: bool, launchers_report: bool = False
) -> float:
    """Seconds until the next tick.

    Args:
        step_ns: the shortest average step of the jobs here; 0 if one is unknown.
        stopped: a process is stopped.
        waiting: operators have been outstanding for long.
        launchers_report: launchers report stopped processes, so that they need no polling.
    """
    if stopped:
        return STOPPED_SECONDS
    if waiting:
        return SHORTEST_SECONDS
    shortest = LAUNCHER_SECONDS if launchers_report else SHORTEST_SECONDS
    return min(max(step_ns / TICKS_PER_STEP / 1e9, shortest), LONGEST_SECONDS)
