"""Devices of all ranks that idle for a notable part of the steps, because hosts do something else.

Fault: values that hosts wait for (`.item()`) before they launch more, an allocator that asks the
driver for memory in every step, saving, or code between the steps. No rank is slower than its
peers, so nothing else finds it.
Paper: none; the idle time is that of HolisticTraceAnalysis (`views.breakdown`). What the device
idles that does so least is lost by all (`account.waste`). A few percent are ordinary, and a long
step may be planned. Only gaps count that are far longer than launching a kernel takes, or that
follow a copy to the host, which reads a value before it launches more. Other short ones do not show
whether hosts launch too slowly or work is too small for the device; if they are long together,
`decide.undecided` reports that. It runs only where nothing else was found: loading and a user's
function are reported by their own methods.
Cost: none beyond the breakdown. Cannot see: what hosts do meanwhile, without stacks.
"""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.diagnose.account import waste
from stepscope.diagnose.account.belief import ORDINARY
from stepscope.diagnose.account.idle_devices import device_ns
from stepscope.diagnose.finding import Waste
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.words.numbers import percent


class IdleDevices:
    """Devices that all wait for hosts which do something else."""

    name = "idle-devices"
    needs = Needs("kernels", "steps")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Waste]:
        if not job.line.is_trace or job.breakdown is None:
            return
        part = waste.stretch(job, waste.by_all(device_ns(job, "pauses_ns")), ORDINARY)
        if part is None:
            return
        part = waste.costing(job, part, part.loss)
        judged = slice(job.line.warm_up, None)
        read, paused = (float(waste.by_all(device_ns(job, name))[judged].sum())
                        for name in ("reads_ns", "pauses_ns"))  # fmt: skip
        reads = read > HALF * paused
        says = (
            f"the devices of all ranks idle for {percent(part.loss)} of their steps, while hosts "
            f"{'read values from them' if reads else 'launch nothing'}{job.line.since(part.first)}"
        )
        where = "after copies to its host" if reads else "in gaps of more than a millisecond"
        detail = (
            f"each of {len(job.line.ranks)} devices waits for {part.lost_ns / 1e6:.1f} ms per "
            f"step, {where}, until its host launches more"
        )
        yield waste.found(job, self.name, "host", part, part.loss, says, detail)
