"""The JSON of a job's evidence, as it lies in the store.

    {"schema": 1, "job": "llama-0412", "writer": "host-000", "written_ns": …,
     "time_ns": [from, until], "ended": true, "ranks": 64, "state": "slow",
     "blamed": [{"cause": "compute", "kind": "slowdown", "summary": "rank 37 computes …",
                 "certainty": 0.96, "log_odds": 2.14,
                 "candidates": [{"type": "gpu", "name": "host-004/gpu-5", "share": 0.95}, …]}],
     "healthy": [{"log_odds": -0.68, "devices": {"gpu": ["host-000/gpu-0", …], "cpu": […]}}, …],
     "unjudged": {"cpu": ["host-004/cpu"]},
     "ids": {"host-004/gpu-5": "GPU-5f…"}}

Whoever can write into the store can write evidence, so numbers are limited to what an honest job
may say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any

from stepscope.devices.blame import Blame, Candidate
from stepscope.devices.constants import LEAST_OF_A_JOB, MOST_OF_A_JOB
from stepscope.devices.evidence import Healthy, JobEvidence
from stepscope.devices.used import TYPES, Used
from stepscope.errors import FormatError

SCHEMA = 1
LARGEST_BYTES = 64 << 20
"""A job on 100,000 GPUs has some 400,000 devices of 30 bytes each."""
LONGEST_TEXT = 1000
_LATEST_NS = (1 << 63) - 1
_INVALID = (ValueError, OverflowError, RecursionError)


def to_bytes(one: JobEvidence) -> bytes:
    """The evidence as JSON, the same bytes for the same evidence."""
    used = chain(one.unjudged, *(some.devices for some in one.healthy),
                 (c.device for b in one.blames for c in b.candidates))  # fmt: skip
    data = {
        "schema": SCHEMA, "job": one.job, "writer": one.writer, "written_ns": one.written_ns,
        "time_ns": [one.from_ns, one.until_ns], "ended": one.ended, "ranks": one.ranks,
        "state": one.state, "blamed": [_blamed(blame) for blame in one.blames],
        "healthy": [{"log_odds": some.log_odds, "devices": _by_type(some.devices)}
                    for some in one.healthy],
        "unjudged": _by_type(one.unjudged),
        "ids": {device.name: device.id for device in used if device.id},
    }  # fmt: skip
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


def _blamed(one: Blame) -> dict[str, Any]:
    return {
        "cause": one.cause, "kind": one.kind, "summary": one.summary[:LONGEST_TEXT],
        "certainty": one.certainty, "log_odds": round(one.log_odds, 4),
        "candidates": [{"type": c.device.type, "name": c.device.name, "share": round(c.share, 4)}
                       for c in one.candidates],
    }  # fmt: skip


def _by_type(devices: Iterable[Used]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in devices:
        found.setdefault(one.type, []).append(one.name)
    return found


def from_bytes(data: bytes) -> JobEvidence:
    """Reads evidence that this or another version wrote.

    Raises:
        FormatError: it is damaged, or something else.
    """
    if len(data) > LARGEST_BYTES:
        raise FormatError(f"it has {len(data)} bytes; at most {LARGEST_BYTES} are read")
    try:
        return _evidence(json.loads(data))
    except (KeyError, TypeError, AttributeError, *_INVALID) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise FormatError(f"it is no evidence of a job: {what}") from error


def _evidence(data: Mapping[str, Any]) -> JobEvidence:
    if not isinstance(data, dict) or data["schema"] != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}; a newer stepscope may have written it")
    ids = {str(name): str(id) for name, id in data.get("ids", {}).items()}
    begin, until = (_time(one) for one in data["time_ns"])
    return JobEvidence(
        str(data["job"]), str(data["writer"]), _time(data["written_ns"]), begin, until,
        int(data["ranks"]), str(data["state"]),
        tuple(_blame(one, ids) for one in data["blamed"]),
        tuple(_healthy(one, ids) for one in data["healthy"]),
        _devices(data["unjudged"], ids), bool(data["ended"]),
    )  # fmt: skip


def _healthy(data: Mapping[str, Any], ids: Mapping[str, str]) -> Healthy:
    log_odds = _log_odds(data["log_odds"], LEAST_OF_A_JOB, 0.0)
    return Healthy(log_odds, _devices(data["devices"], ids))


def _blame(data: Mapping[str, Any], ids: Mapping[str, str]) -> Blame:
    named = [_Share.of(one, ids) for one in data["candidates"]]
    whole = sum(one.share for one in named)
    if not whole > 0:
        raise ValueError("no candidate has a share of the blame")
    return Blame(
        str(data["cause"]), str(data["kind"]), str(data["summary"])[:LONGEST_TEXT],
        _share(data["certainty"]), _log_odds(data["log_odds"], 0.0, MOST_OF_A_JOB),
        tuple(Candidate(one.device, one.share / whole) for one in named),
    )  # fmt: skip


class _Share(Candidate):
    """A candidate whose shares may not add up to 1 yet."""

    @classmethod
    def of(cls, data: Mapping[str, Any], ids: Mapping[str, str]) -> _Share:
        device = _device(str(data["type"]), str(data["name"]), ids)
        return cls(device, _share(data["share"]))


def _devices(data: Mapping[str, Any], ids: Mapping[str, str]) -> tuple[Used, ...]:
    return tuple(_device(type, str(name), ids) for type, names in data.items() for name in names)


def _device(type: str, name: str, ids: Mapping[str, str]) -> Used:
    return _named(type, name, ids.get(name, ""))


@lru_cache(1 << 18)  # the jobs of a cluster use the same devices
def _named(type: str, name: str, id: str) -> Used:
    if type not in TYPES or not 0 < len(name) <= LONGEST_TEXT:
        raise ValueError(f"{type} {name[:40]!r} is no device")
    return Used(type, name, id)


def _time(value: Any) -> int:
    number = int(value)
    if not 0 <= number <= _LATEST_NS:
        raise ValueError(f"{number} is no time")
    return number


def _share(value: Any) -> float:
    number = float(value)
    if not 0 <= number <= 1:
        raise ValueError(f"{number} is not between 0 and 1")
    return number


def _log_odds(value: Any, least: float, most: float) -> float:
    """Evidence, limited to what one job may say by the constants of this version."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is no evidence")
    return min(max(number, least), most)
