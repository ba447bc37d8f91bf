"""Converts a diagnosis to the JSON object described in `docs/diagnosis-json.md`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from stepscope.diagnose.finding import AnomalousWindow, Candidate, Diagnosis, Verdict
from stepscope.report import story


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """All keys are always present, but `functions` only where ranks profiled steps and `compared`
    only with a healthy job to compare with; unknown values and non-finite numbers are null.

    In addition to the stable keys, a verdict has its `stack`, and the diagnosis has `losses` (rows
    known to be lost, by table), `cost` (stepscope's own overhead), `rank_times` (where the time of
    an average step goes) and `latecomers` (last arrivals in collectives), and `periods` (slow
    steps that come back at regular distances).
    """
    return {
        "schema": 1,
        "job_id": diagnosis.job_id,
        "ranks": _plain(diagnosis.ranks),
        "steps": _plain(diagnosis.steps),
        "state": diagnosis.state,
        "outcome": diagnosis.outcome,
        "headline": story.headline(diagnosis),
        "unaccounted": diagnosis.unaccounted,
        "unrecorded": diagnosis.unrecorded,
        "windows": [_window(window) for window in diagnosis.windows],
        "verdicts": [_verdict(verdict) for verdict in diagnosis.verdicts],
        "ledger": _plain(diagnosis.ledger),
        "clocks": _plain(diagnosis.clocks),
        "skipped": [{"method": one.method, "why": one.why} for one in diagnosis.skipped],
        "rank_times": _plain(diagnosis.rank_times),
        "limits": _plain(diagnosis.limits),
        "latecomers": _plain(diagnosis.last_arrivals),
        "candidates": [_candidate(one) for one in diagnosis.candidates],
        "periods": _plain(diagnosis.periods),
        **({"compared": _plain(diagnosis.compared)} if diagnosis.compared else {}),
        "losses": _plain(diagnosis.losses),
        "cost": _plain(diagnosis.cost),
        **({"functions": _plain(diagnosis.functions)} if diagnosis.functions else {}),
    }


def _window(window: AnomalousWindow) -> dict[str, Any]:
    return {key: _plain(value) for key, value in vars(window).items() if key != "why" or value}


_VERDICT_KEYS = (
    "kind", "cause", "ranks", "hosts", "group", "devices", "phase", "kernels", "function",
    "steps", "time_ns", "slowdown", "lost_fraction", "confidence", "victims", "summary",
    "advice", "evidence", "decisions", "lasted_ns", "lost_rank_ns", "stack", "ended", "lost_of",
    "places", "opinions", "agreement", "facts",
)  # fmt: skip


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {key: _plain(getattr(verdict, key)) for key in _VERDICT_KEYS}


def _candidate(one: Candidate) -> dict[str, Any]:
    """Somebody who was considered; the decisions of those with a verdict stand there."""
    decisions = [] if one.verdict is not None else one.decisions
    return _plain({  # type: ignore[no-any-return]
        "who": one.who, "ranks": one.ranks, "verdict": one.verdict,
        "ended_by": None if one.ended_by is None else one.ended_by.rule,
        "decisions": decisions,
    })  # fmt: skip


def _plain(value: Any) -> Any:
    """Makes a value JSON-compatible: records to objects, tuples to lists, numpy scalars to numbers,
    NaN to null."""
    if is_dataclass(value):
        value = vars(value)
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
