"""The ledger as a table for people, and as JSON for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from stepscope.devices.constants import HALF_LIFE_DAYS
from stepscope.devices.posterior import DAY_NS, Accusation, Standing
from stepscope.report.plain import printable
from stepscope.report.units import FIRST_WALL_CLOCK_NS, count, duration, moment, names

MOST_EVIDENCE = 3
"""Verdicts that are quoted for each device."""
STALE_HALF_LIVES = 2
COLUMNS = ("device", "bad", "jobs", "last bad", "causes", "do")
MOST_CAUSES = 2


def render(found: Sequence[Standing], jobs: int, now_ns: int, width: int, limit: int) -> str:
    """The worst devices, a line each, and the verdicts against those that are not fine."""
    shown = found[:limit]
    lines = [headline(found, jobs) + _stale(found, now_ns), ""]
    lines += _table([COLUMNS, *(_cells(one, now_ns) for one in shown)])
    rest = len(found) - len(shown)
    if rest:
        lines.append(f"  and {count(rest, 'more device')}; --limit {len(found)} shows all")
    for one in shown:
        if one.advice != "fine":
            lines += ["", *_evidence(one, now_ns, width)]
    return "\n".join(printable(line).rstrip() for line in lines) + "\n"


def headline(found: Sequence[Standing], jobs: int) -> str:
    """`drain 2 of 104 devices in 100 jobs: host-012/gpu-3, host-007/cpu; watch 1`."""
    bad = [one for one in found if one.advice == "drain"]
    watched = sum(one.advice == "watch" for one in found)
    watch = f"; watch {watched}" if watched else ""
    if not bad:
        return f"nothing to drain: {count(len(found), 'device')} in {count(jobs, 'job')}{watch}"
    named = names([one.device.name for one in bad])
    return (
        f"drain {len(bad)} of {count(len(found), 'device')} in {count(jobs, 'job')}: {named}{watch}"
    )


def _stale(found: Sequence[Standing], now_ns: int) -> str:
    """That the newest evidence is so old that it hardly counts."""
    newest = max((one.last_used_ns for one in found), default=now_ns)
    if now_ns - newest < STALE_HALF_LIVES * HALF_LIFE_DAYS * DAY_NS:
        return ""
    return f"; the newest evidence is of {moment(newest)}, and counts little"


def _cells(one: Standing, now_ns: int) -> tuple[str, ...]:
    last = one.last_bad_ns
    causes = [cause if times == 1 else f"{cause} ({times})" for cause, times in one.causes.items()]
    return (
        one.device.name, _chance(one.probability), f"{one.bad} of {one.used}",
        "never" if last is None else ago(last, now_ns), names(causes, MOST_CAUSES) or "-",
        one.advice,
    )  # fmt: skip


def _chance(probability: float) -> str:
    """`0.84`; a digit more below 0.1, where one device in a hundred is usual."""
    return f"{probability:.2f}" if probability >= 0.0995 else f"{probability:.3f}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    padded = ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
              for row in rows]  # fmt: skip
    return [padded[0], "  " + "-" * (sum(widths) + 2 * (len(widths) - 1)), *padded[1:]]


def _evidence(one: Standing, now_ns: int, width: int) -> list[str]:
    """Why a device is not fine: its newest verdicts, and how often it was well."""
    lines = textwrap.wrap(f"{one.advice} {one.device.name}{_also_called(one)}: {_why(one)}", width,
                          subsequent_indent="  ")  # fmt: skip
    if not one.bad:
        return lines
    for accusation in one.accusations[:MOST_EVIDENCE]:
        text = f"{accusation.job}, {ago(accusation.until_ns, now_ns)}: {_said(accusation)}"
        lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ",
                               break_on_hyphens=False)  # fmt: skip
    rest = len(one.accusations) - MOST_EVIDENCE
    return [*lines, f"  and {count(rest, 'more verdict')}"] if rest > 0 else lines


def _also_called(one: Standing) -> str:
    return f" ({one.device.id})" if one.device.id else ""


def _why(one: Standing) -> str:
    if not one.bad:
        blamed = count(len({accusation.job for accusation in one.accusations}), "job")
        return f"may be the true cause in {blamed} where {_rival(one)} is blamed"
    others = _others(one)
    jobs = "the only job" if one.used == 1 else f"{one.bad} of the {one.used} jobs"
    bad = f"blamed in {jobs} that used it"
    return f"{bad}; it may be {names(others)} instead" if others else bad


def _rival(one: Standing) -> str:
    """The device that its newest verdict blames most."""
    candidates = one.accusations[0].blame.candidates
    return max(candidates, key=lambda other: other.share).device.name


def _others(one: Standing) -> list[str]:
    """Devices that share the blame in most of its verdicts, without its host."""
    found: dict[str, int] = {}
    for accusation in one.accusations:
        for other in accusation.blame.candidates:
            if other.device.key != one.device.key and other.device.name != one.device.host:
                found[other.device.name] = found.get(other.device.name, 0) + 1
    return [name for name, times in found.items() if 2 * times > len(one.accusations)]


def _said(one: Accusation) -> str:
    share = "" if one.share >= 0.9 else f", {100 * one.share:.0f} % of the blame"
    return f"{one.blame.summary} (confidence {one.blame.certainty:.2f}{share})"


def ago(then_ns: int, now_ns: int) -> str:
    """`3 d 4 h ago`, or a date that is ahead of this machine's clock."""
    if then_ns > now_ns or then_ns < FIRST_WALL_CLOCK_NS:
        return moment(then_ns)
    return f"{duration(now_ns - then_ns)} ago"


def to_json(
    found: Sequence[Standing], jobs: int, now_ns: int, problems: Sequence[str]
) -> dict[str, Any]:
    """The object that `stepscope devices --json` prints."""
    return {
        "schema": 1, "now_ns": now_ns, "jobs": jobs,
        "devices": [_device(one) for one in found], "problems": list(problems),
    }  # fmt: skip


def _device(one: Standing) -> dict[str, Any]:
    return {
        "type": one.device.type, "name": one.device.name, "id": one.device.id or None,
        "host": one.device.host, "probability": round(one.probability, 4),
        "log_odds": round(one.log_odds, 4), "jobs_bad": one.bad, "jobs_used": one.used,
        "last_bad_ns": one.last_bad_ns, "last_used_ns": one.last_used_ns,
        "causes": dict(one.causes), "advice": one.advice,
        "evidence": [
            {"job": it.job, "until_ns": it.until_ns, "cause": it.blame.cause,
             "kind": it.blame.kind, "certainty": it.blame.certainty,
             "log_odds": round(it.blame.log_odds, 4), "share": round(it.share, 4),
             "summary": it.blame.summary}
            for it in one.accusations
        ],
    }  # fmt: skip
