"""The known faults of a simulated job. They are kept beside the job, never in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class FaultTruth:
    """One fault: the culprits, and what it cost.

    All costs are relative to the same job without this fault. `slowdown` is how many times longer
    the steps with the fault took, `lost_ns` is how much longer the whole job took, and
    `lost_fraction` is the share of the time of these steps that would be saved. It is smaller than
    `slowdown` suggests if a step that ends late lets the next one end early. For a hang all three
    are None, because without it the job would have gone on.
    """

    fault: str
    family: str
    kind: str
    cause: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    devices: tuple[tuple[str, str], ...]
    """Type and full name: (`gpu`, `host-004/gpu-5`)."""
    phase: str | None
    function: str | None
    steps: tuple[int, int] | None
    """First and last step in which the fault was active; None: it never was."""
    active_steps: int
    slowdown: float | None
    lost_ns: int | None
    parameters: Mapping[str, Any]
    lost_fraction: float | None = None
    group: str | None = None
    """A group that is accepted as an answer instead of the ranks in it."""


@dataclass(frozen=True)
class Truth:
    """All faults of one simulated job; none, if it is healthy."""

    job_id: str
    seed: int
    faults: tuple[FaultTruth, ...] = ()
    inherent: tuple[FaultTruth, ...] = ()
    """What the job loses by its own nature, as by samples of unequal length: true if somebody says
    so, and no miss if nobody does."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        return {"schema": 1, "job_id": self.job_id, "seed": self.seed,
                "faults": [_plain(asdict(one)) for one in self.faults],
                "inherent": [_plain(asdict(one)) for one in self.inherent]}  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Truth:
        """Reads what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        faults, inherent = (
            tuple(_fault(one) for one in found)
            for found in (data["faults"], data.get("inherent", ()))
        )
        return cls(str(data["job_id"]), int(data["seed"]), faults, inherent)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value


def _fault(data: Mapping[str, Any]) -> FaultTruth:
    return FaultTruth(**{key: _tuples(value) for key, value in data.items()})


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _tuples(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_tuples(one) for one in value)
    return value
