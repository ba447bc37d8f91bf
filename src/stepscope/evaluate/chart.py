"""Scores as inline SVG: one dot per row, with its confidence interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from stepscope.evaluate.intervals import Rate, rate
from stepscope.evaluate.runner import Result
from stepscope.evaluate.suite import LOOKS
from stepscope.evaluate.table import Row, size_of

WIDTH, LINE, TOP = 1000, 22, 30
LEFT, RIGHT = 240, 900
"""The plotting area; names are to its left, counts to its right."""
GOOD, POOR = 0.9, 0.5
"""At or above the first a dot is green, below the second it is red. This is only a visual aid."""


def rates(rows: Sequence[Row], chosen: Callable[[Row], Rate], *, wanted: bool = True) -> Markup:
    """One line per row that has jobs to score; `wanted`: higher is better."""
    shown = [row for row in rows if chosen(row).of]
    if not shown:
        return Markup()
    height = TOP + LINE * len(shown) + 24
    parts = list(_scale(height))
    for at, row in enumerate(shown):
        parts += _line(row.name, chosen(row), _y(at), wanted)
    return _svg(height, "Rates with 95 % intervals", parts)


def looks(results: Sequence[Result]) -> Markup:
    """How many jobs had their culprit named first after each number of steps."""
    counts = [(steps, sum(one.steps_to_verdict == steps for one in results)) for steps in LOOKS]
    if not any(count for _, count in counts):
        return Markup()
    most = max(count for _, count in counts)
    parts = [part for at, (steps, count) in enumerate(counts)
             for part in _bar(f"{steps} steps", count, most, _y(at))]  # fmt: skip
    return _svg(TOP + LINE * len(counts), "Jobs by steps to verdict", parts)


@dataclass(frozen=True)
class Point:
    """A rate at a number of ranks."""

    ranks: int
    rate: Rate


def by_ranks(results: Sequence[Result]) -> list[Point]:
    """How often the first verdict named a culprit, by size of the job."""
    judged: dict[int, list[bool | None]] = {}
    for one in sorted(results, key=size_of):
        if one.score.found is not None:
            judged.setdefault(size_of(one), []).append(one.score.found)
    return [Point(size, rate(some)) for size, some in judged.items()]


def sizes(points: Sequence[Point]) -> Markup:
    """These points as a chart."""
    if not points:
        return Markup()
    height = TOP + LINE * len(points) + 24
    parts = list(_scale(height))
    for at, point in enumerate(points):
        parts += _line(f"{point.ranks:,} ranks", point.rate, _y(at))
    return _svg(height, "Rates by number of ranks", parts)


def _svg(height: int, label: str, parts: Sequence[Markup]) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, label, Markup("\n").join(parts)
    )


def _scale(height: int) -> Iterator[Markup]:
    for percent in range(0, 101, 25):
        yield Markup(
            '<line class="grid" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>'
            '<text x="{0}" y="{3}" text-anchor="middle">{4} %</text>'
        ).format(_x(percent / 100), TOP - 8, height - 20, height - 5, percent)


def _line(name: str, one: Rate, y: int, wanted: bool = True) -> Iterator[Markup]:
    low, high = one.interval
    value = one.value or 0.0
    right = value if wanted else 1 - value
    mood = "good" if right >= GOOD else "poor" if right < POOR else "fair"
    yield Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(LEFT - 12, y + 4, name)
    yield Markup('<line class="range" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
        _x(low), _x(high), y, y
    )
    yield Markup('<circle class="{}" cx="{}" cy="{}" r="5"><title>{}</title></circle>').format(
        mood, _x(value), y,
        f"{name}: {one.hits} of {one.of}, {100 * low:.0f} to {100 * high:.0f} %",
    )  # fmt: skip
    yield Markup('<text x="{}" y="{}">{}</text>').format(RIGHT + 16, y + 4, f"{one.hits}/{one.of}")


def _bar(name: str, count: int, most: int, y: int) -> Iterator[Markup]:
    yield Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(LEFT - 12, y + 4, name)
    yield Markup('<rect class="bar" x="{}" y="{}" width="{}" height="12"/>').format(
        LEFT, y - 6, round((RIGHT - LEFT) * count / most, 1)
    )
    yield Markup('<text x="{}" y="{}">{}</text>').format(RIGHT + 16, y + 4, count)


def _x(share: float) -> float:
    return round(LEFT + (RIGHT - LEFT) * share, 1)


def _y(at: int) -> int:
    return TOP + LINE * at
