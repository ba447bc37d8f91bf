"""What a log of calls and network requests still says, and what it cannot."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import diagnose
from stepscope.evaluate.strip import STRIPS, Context
from stepscope.simulate import Noise, Parallelism, Scenario, parse_fault, simulate
from stepscope.window import Ints, Window

FSDP = Parallelism(sharding="fsdp")


def a_log(
    *faults: str, ranks: int = 32, noise: Noise | None = None, one: Parallelism = FSDP
) -> Window:
    """Calls and requests of a data parallel job on hosts with eight ranks."""
    job = simulate(
        Scenario(
            ranks=ranks, steps=40, seed=3, parallelism=one,
            noise=noise or Noise(warm_up=(), checkpoint_every=0), detail="normal",
            faults=tuple(map(parse_fault, faults)),
        )
    )  # fmt: skip
    return STRIPS["calls"].apply(job.window, Context())


def verdicts(window: Window) -> list[Verdict]:
    return [one for one in diagnose(window).verdicts if not one.is_suspect]


def test_an_adapter_whose_requests_are_always_outstanding_is_named() -> None:
    (verdict,) = verdicts(a_log("nic_slow:rank=11,factor=4,from=20"))
    assert (verdict.cause, verdict.ranks) == ("network", (11,))
    assert verdict.steps is not None
    assert verdict.steps[0] == pytest.approx(20, abs=1)
    assert verdict.devices[0].name.startswith("host-001/nic-3")


def test_a_host_with_few_cores_is_named_by_its_pauses() -> None:
    (verdict,) = verdicts(a_log("few_cores:host=host-002,from=20"))
    assert (verdict.cause, verdict.ranks) == ("host", tuple(range(16, 24)))


def test_nobody_is_accused_in_a_healthy_job() -> None:
    assert not verdicts(a_log())


@pytest.mark.parametrize(
    ("one", "others", "only"),
    [(Parallelism(), (10, 20), ""), (Parallelism(tp=4), (8, 10), ",only=mlp")],
    ids=["of a data parallel job", "of a tensor parallel group"],
)
def test_which_device_is_slow_is_in_no_log_of_calls(
    one: Parallelism, others: tuple[int, ...], only: str
) -> None:
    """Different culprits, one log, to the nanosecond: so nobody can be named."""
    log, *logs = (
        a_log(f"gpu_slow:rank={rank},factor=2,from=20{only}", one=one, noise=Noise.none())
        for rank in (9, *others)
    )
    assert all(_is_same(log, other) for other in logs)
    assert not any(one.ranks for one in verdicts(log))


def _is_same(one: Window, other: Window) -> bool:
    return all(
        np.array_equal(_column(one, name, column), _column(other, name, column))
        for name, table in one.tables.items()
        for column in table.columns
    )


def _column(log: Window, name: str, column: str) -> Ints:
    table = log.tables[name]
    if column in ("op", "group", "nic"):
        return table.strings(column).codes.astype(np.int64)
    return table.ints(column)
