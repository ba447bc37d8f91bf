"""A verdict as four tiles on the HTML page: cost, culprit, cause, since when."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stepscope.diagnose.finding import Diagnosis, Evidence, Value, Verdict
from stepscope.report import story, units


@dataclass(frozen=True)
class Tile:
    """A label, a value in large type, and a note below it."""

    label: str
    value: str
    note: str = ""


def tiles(verdict: Verdict, diagnosis: Diagnosis) -> tuple[Tile, ...]:
    return (
        _cost(verdict),
        _culprit(verdict),
        _cause(verdict),
        _since(verdict, diagnosis),
    )


def _cost(verdict: Verdict) -> Tile:
    value, *notes = story.costs(verdict) or ("unknown",)
    return Tile("Cost", value, "; ".join(notes))


def _cause(verdict: Verdict) -> Tile:
    if story.knows_cause(verdict):
        return Tile("Cause", story.meaning_of(verdict)[0], story.sureness(verdict))
    return Tile("Cause", "unknown", f"{story.sureness(verdict)} for the culprit")


def _culprit(verdict: Verdict) -> Tile:
    devices = [device.name for device in verdict.devices[:1]]
    if verdict.ranks:
        return Tile("Culprit", units.ranks(verdict.ranks, limit=2),
                    ", ".join(devices) or units.names(verdict.hosts, limit=2))  # fmt: skip
    if devices or verdict.hosts:
        return Tile("Culprit", units.names(devices or verdict.hosts, limit=2))
    return Tile("Culprit", "no single rank", verdict.function or "")


def _since(verdict: Verdict, diagnosis: Diagnosis) -> Tile:
    moment = story.moment_of(verdict)
    if verdict.steps is None:
        day, _, rest = moment.partition(" ")
        time, _, lasted = rest.partition(", ")
        return Tile("Since", time or "unknown", ", ".join(filter(None, (day, lasted))))
    first, last = verdict.steps
    ongoing = diagnosis.steps is None or last >= diagnosis.steps[1]
    notes = [moment, "" if ongoing else f"until step {last}"]
    return Tile("Since", f"step {first}", ", ".join(note for note in notes if note))


def numbers(evidence: Evidence) -> list[tuple[str, str]]:
    """Labels and formatted values of the evidence; unknown values are left out."""
    known = ((name, value) for name, value in evidence.values.items() if _is_known(value))
    return [(_label(name), _number(name, value)) for name, value in known]


def _is_known(value: Value) -> bool:
    if isinstance(value, list):
        return bool(value)
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _label(name: str) -> str:
    return name.removesuffix("_ns").removesuffix("_fraction").replace("_", " ")


def _number(name: str, value: Value) -> str:
    if isinstance(value, list):
        more = ", …" if len(value) > 6 else ""
        return ", ".join(_number(name, item) for item in value[:6]) + more
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, str):
        return value or ""
    if name.endswith("_fraction"):
        return units.percent(value)
    if name.endswith("_ns"):
        return units.duration(value)
    return str(value) if isinstance(value, int) else units.significant(value)
