"""Loading of a host costs only what no phase of its device covers."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.exposed_loading import exposed_loading
from stepscope.diagnose.views.timeline import timeline
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Window

from .jobs import MS, START, a_table

STAGES, REPLICAS, STEPS, WORK_MS = 2, 4, 40, 400
RANKS = STAGES * REPLICAS


def a_pipeline(ahead_ms: float, load_ms: float, since: int = 0, bubble_ms: float = 0) -> Window:
    """The first stage loads samples; the last one labels, in no time. Hosts are ahead of their
    devices, so a batch that takes no longer is there in time.

    Args:
        since: the step from which on loading takes so long; before, 2 ms.
        bubble_ms: how long each stage waits for another one in the middle of a step.
    """
    random, clock = np.random.default_rng(0), START
    steps: list[tuple[object, ...]] = []
    phases: list[tuple[object, ...]] = []
    for step in range(STEPS):
        loads = (load_ms if step >= since else 2) * (1 + 0.1 * random.random(REPLICAS))
        late_ms = max(float(loads.max()) - ahead_ms, 0.0)
        work = WORK_MS * (1 + 0.005 * random.normal(size=RANKS))
        lasts = int((late_ms + float(work.max()) + bubble_ms) * MS)
        for rank in range(RANKS):
            load_ns = int((loads[rank] if rank < REPLICAS else 1) * MS)
            begin = clock + int(late_ms * MS)
            half = int(work[rank] * MS) // 2
            steps.append((rank, step, clock, lasts))
            phases.append((rank, step, "data-load", clock - int(ahead_ms * MS), load_ns))
            phases.append((rank, step, "self_attention", begin, half))
            phases.append((rank, step, "mlp", begin + half + int(bubble_ms * MS), half))
        clock += lasts
    groups = tuple(ProcessGroup(f"pp-{at}", "pp", (at, at + REPLICAS)) for at in range(REPLICAS))
    job = Job("a-job", RANKS, (Host("host-000", tuple(range(RANKS))),),
              {"pp": STAGES, "dp": REPLICAS}, groups)  # fmt: skip
    return Window(job, {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns", phases),
    })  # fmt: skip


def exposed_in(window: Window) -> Floats | None:
    return exposed_loading(window, timeline(window))


def loading(found: Diagnosis) -> list[float]:
    return [one.lost_fraction or 0.0 for one in found.verdicts if one.cause == "data_loading"]


def test_what_a_device_computes_meanwhile_is_not_lost() -> None:
    assert not loading(diagnose(a_pipeline(ahead_ms=260, load_ms=200)))


def test_what_holds_the_devices_of_the_first_stage_is() -> None:
    (lost,) = loading(diagnose(a_pipeline(ahead_ms=50, load_ms=150, since=20)))
    assert lost == pytest.approx(0.2, abs=0.05)


def test_only_what_lies_beside_other_phases_counts() -> None:
    exposed = exposed_in(a_pipeline(ahead_ms=50, load_ms=150))
    assert exposed is not None
    assert np.nanmedian(exposed[:REPLICAS, 5:]) == pytest.approx(110 * MS, rel=0.2)


def test_what_a_device_waits_for_in_the_middle_of_a_step_is_no_batch() -> None:
    window = a_pipeline(ahead_ms=350, load_ms=310, bubble_ms=200)
    exposed = exposed_in(window)
    assert exposed is not None and np.nanmedian(exposed[:REPLICAS, 5:]) < MS
    assert not loading(diagnose(window))


def test_loading_that_is_never_beside_another_phase_has_one_clock() -> None:
    assert exposed_in(a_pipeline(ahead_ms=0, load_ms=100)) is None


def test_loading_that_a_device_hides_is_no_own_time() -> None:
    """A host that copies a batch to its device waits for the work before, and so for others."""
    own = Observed(a_pipeline(ahead_ms=310, load_ms=300)).own.of("data-load")
    assert np.nanmedian(own[:REPLICAS, 5:]) < 20 * MS
