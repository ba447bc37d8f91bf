"""The results of many cases as text: a row for each, and totals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lab.score import Said, Score

_MARKS = {True: "yes", False: "NO", None: "-"}
HEAD = f"{'case':28} {'passed':6} {'culprit':7} {'cause':5} {'lost':4} {'costs':>5}  remark"


@dataclass(frozen=True)
class Result:
    """A case, and how the diagnosis of it was scored."""

    truth: dict[str, Any]
    score: Score
    said: list[Said]

    @property
    def counts(self) -> bool:
        """A fault that costs nearly nothing is nobody's to find."""
        return bool(self.truth.get("worth", True))


def row(result: Result) -> str:
    score, truth = result.score, result.truth
    costs = f"{truth['lost']:.0%}" if "lost" in truth else "-"
    marks = [_MARKS[mark] for mark in (score.passed, score.culprit, score.cause, score.lost)]
    small = "" if result.counts else "costs too little, not counted; "
    return (f"{truth['id']:28} {marks[0]:6} {marks[1]:7} {marks[2]:5} {marks[3]:4} {costs:>5}  "
            f"{small}{score.remark}").rstrip()  # fmt: skip


def totals(results: Sequence[Result]) -> str:
    """By kind of fault and by kind of job, as a table in Markdown."""
    counted = [result for result in results if result.counts]
    faulty = [result for result in counted if result.truth["faults"]]
    lines = ["| | jobs | culprit exact | cause | loss within 0.1 | innocent accused |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    lines += _lines(faulty, lambda truth: f"fault: {truth['family']}")
    lines += _lines(faulty, lambda truth: f"job: {_kind(truth)}")
    lines += _lines(faulty, lambda _truth: "all faults")
    lines += _lines([r for r in counted if not r.truth["faults"]], lambda _truth: "healthy")
    return "\n".join([*lines, "", _reliability(counted)])


def _kind(truth: dict[str, Any]) -> str:
    name: str = truth["job"]["name"]
    return name.rpartition("-")[0]


def _lines(results: Sequence[Result], label: Callable[[dict[str, Any]], str]) -> list[str]:
    labels = sorted({label(result.truth) for result in results})
    return [_line(name, [r for r in results if label(r.truth) == name]) for name in labels]


def _line(name: str, results: Sequence[Result]) -> str:
    scores = [result.score for result in results]
    accused = sum(bool(score.accused) for score in scores)
    culprit, cause = _share(s.culprit for s in scores), _share(s.cause for s in scores)
    lost = _share(s.lost for s in scores)
    return f"| {name} | {len(scores)} | {culprit} | {cause} | {lost} | {accused} |"


def _share(marks: Iterable[bool | None]) -> str:
    known = [mark for mark in marks if mark is not None]
    return f"{sum(known)} of {len(known)}" if known else "-"


def _reliability(results: Sequence[Result]) -> str:
    said = [said for result in results for said in result.said if said.confidence >= 0.9]
    right = sum(one.right for one in said)
    return f"Verdicts said at a confidence of 0.9 or more: {right} of {len(said)} right."


def labelled(results: Sequence[Result]) -> str:
    """A line of JSON for every verdict: its facts, and whether it is right."""
    rows = [{"origin": "lab", "kind": said.kind, "facts": dict(said.facts), "right": said.right}
            for one in results for said in one.said]  # fmt: skip
    return "".join(f"{json.dumps(row)}\n" for row in rows)
