"""What a simulated job is known to suffer from: kept beside the job, never in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class FaultTruth:
    """One fault, who is to blame for it, and what it cost.

    `slowdown` is how many times longer the job's steps took in which the fault was there,
    `lost_ns` how much longer the whole job took, both against the same job without this fault, and
    `lost_fraction` the share of the time of these steps that would come back: less than `slowdown`
    tells where a step that ends late lets the next one end early.
    They are None for a hang: without it the job would have gone on.
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
    """First and last step in which it was there; None: it never was."""
    active_steps: int
    slowdown: float | None
    lost_ns: int | None
    parameters: Mapping[str, Any]
    lost_fraction: float | None = None
    group: str | None = None
    """A group that is as good an answer as the ranks in it, where nobody could know more."""


@dataclass(frozen=True)
class Truth:
    """All that is wrong with one simulated job; nothing, if it is healthy."""

    job_id: str
    seed: int
    faults: tuple[FaultTruth, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        return {"schema": 1, "job_id": self.job_id, "seed": self.seed,
                "faults": [_plain(asdict(one)) for one in self.faults]}  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Truth:
        """Reads what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        faults = tuple(_fault(one) for one in data["faults"])
        return cls(str(data["job_id"]), int(data["seed"]), faults)


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
