"""Converts a diagnosis to the JSON object described in `docs/diagnosis-json.md`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from stepscope.diagnose.finding import AnomalousWindow, Candidate, Diagnosis, Verdict
from stepscope.diagnose.shown import Compared, Ledger
from stepscope.report import story


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """All keys are always present, but `functions` only where ranks profiled steps and `compared`
    only with a healthy job to compare with; unknown values and non-finite numbers are null.

    In addition to the stable keys, a verdict has its `stack`, and the diagnosis has `losses` (rows
    known to be lost, by table), `cost` (stepscope's own overhead), `rank_times` (where the time of
    an average step goes) and `latecomers` (last arrivals in collectives), and `periods` (slow
    steps that come back at regular distances).
    """
    profiled = [_plain(vars(one)) for one in diagnosis.functions]
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
        "ledger": _ledger(diagnosis.ledger),
        "clocks": [_plain(vars(clock)) for clock in diagnosis.clocks],
        "skipped": [{"method": one.method, "why": one.why} for one in diagnosis.skipped],
        "rank_times": [_plain(vars(time)) for time in diagnosis.rank_times],
        "limits": [_plain(vars(limit)) for limit in diagnosis.limits],
        "latecomers": [_plain(vars(late)) for late in diagnosis.last_arrivals],
        "candidates": [_candidate(one) for one in diagnosis.candidates],
        "periods": [_plain(vars(one)) for one in diagnosis.periods],
        **_compared(diagnosis.compared),
        "losses": _plain(diagnosis.losses),
        "cost": _plain(diagnosis.cost),
        **({"functions": profiled} if profiled else {}),
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
    fields = {**vars(verdict)}
    fields["devices"] = [asdict(device) for device in verdict.devices]
    fields["decisions"] = [vars(decision) for decision in verdict.decisions]
    fields["opinions"] = [vars(opinion) for opinion in verdict.opinions]
    fields["places"] = [asdict(place) for place in verdict.places]
    fields["evidence"] = [vars(evidence) for evidence in verdict.evidence]
    return {key: _plain(fields[key]) for key in _VERDICT_KEYS}


def _ledger(ledger: Ledger | None) -> Any:
    if ledger is None:
        return None
    return _plain({**vars(ledger), "lost": [one._asdict() for one in ledger.lost]})


def _compared(found: Compared | None) -> dict[str, Any]:
    if found is None:
        return {}
    changes = [vars(change) for change in found.changes]
    return {"compared": _plain({**vars(found), "changes": changes})}


def _candidate(one: Candidate) -> dict[str, Any]:
    """Somebody who was considered; the decisions of those with a verdict stand there."""
    decisions = [] if one.verdict is not None else one.decisions
    return _plain({  # type: ignore[no-any-return]
        "who": one.who, "ranks": one.ranks, "verdict": one.verdict,
        "ended_by": None if one.ended_by is None else one.ended_by.rule,
        "decisions": [vars(decision) for decision in decisions],
    })  # fmt: skip


def _plain(value: Any) -> Any:
    """Makes a value JSON-compatible: tuples to lists, numpy scalars to numbers, NaN to null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
