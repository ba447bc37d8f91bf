"""Draws step times as inline SVG, with shaded anomalous windows and a mark at the onset."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median, quantiles

from markupsafe import Markup

from stepscope.diagnose.finding import Diagnosis
from stepscope.report import units
from stepscope.report.series import Bucket, buckets

BUCKETS = 240
"""A finer resolution is not visible and makes the page larger."""
WIDTH, HEIGHT = 1000, 250
LEFT, RIGHT, TOP, BOTTOM = 64, 988, 24, 212
"""The plotting area; the labels are outside."""
_OFF_SCALE = 4
"""The axis is cut if the slowest step takes more than this multiple of the 98th percentile."""


@dataclass(frozen=True)
class Axes:
    """Maps steps and durations to coordinates."""

    first: int
    last: int
    top_ns: float

    def x(self, step: float) -> float:
        share = (step - self.first + 0.5) / (self.last - self.first + 1)
        return round(LEFT + (RIGHT - LEFT) * min(max(share, 0.0), 1.0), 1)

    def y(self, ns: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * min(ns / self.top_ns, 1.0), 1)


def step_chart(diagnosis: Diagnosis) -> Markup:
    """The chart; empty without steps."""
    points = buckets(diagnosis.series, BUCKETS)
    if not points:
        return Markup()
    axes = Axes(points[0].first, points[-1].last, _top(points))
    parts = (*_windows(diagnosis, axes), *_grid(axes), *_curve(points, axes),
             *_onset(diagnosis, axes), *_hovers(points, axes))  # fmt: skip
    return Markup(
        '<svg viewBox="0 0 {} {}" role="img" aria-label="Step time over steps">{}</svg>'
    ).format(WIDTH, HEIGHT, Markup("\n").join(parts))


def _top(points: list[Bucket]) -> float:
    highs = sorted(point.high_ns for point in points)
    usual = quantiles(highs, n=50)[-1] if len(highs) > 1 else highs[0]
    top = highs[-1] if highs[-1] <= _OFF_SCALE * usual else 1.5 * usual
    return max(1.1 * top, 1.0)


def _windows(diagnosis: Diagnosis, axes: Axes) -> Iterator[Markup]:
    for window in diagnosis.windows:
        left, right = axes.x(window.steps[0] - 0.5), axes.x(window.steps[1] + 0.5)
        yield Markup(
            '<rect class="window {}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
        ).format(window.kind, left, TOP, max(round(right - left, 1), 2), BOTTOM - TOP,
                 f"{window.kind}: {units.span(window.steps)}")  # fmt: skip


def _grid(axes: Axes) -> Iterator[Markup]:
    for ns in ticks(axes.top_ns, 5):
        yield Markup(
            '<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>'
            '<text x="{}" y="{}" text-anchor="end">{}</text>'
        ).format(LEFT, RIGHT, axes.y(ns), axes.y(ns), LEFT - 8, axes.y(ns) + 4, _time(ns, axes))
    step = max(1, round(next(iter(_nice(axes.last - axes.first, 8)), 1)))
    for tick in range(math.ceil(axes.first / step) * step, axes.last + 1, step):
        yield Markup(
            '<line class="tick" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>'
            '<text x="{0}" y="{3}" text-anchor="middle">{4}</text>'
        ).format(axes.x(tick), BOTTOM, BOTTOM + 5, BOTTOM + 19, tick)
    yield Markup('<text x="{}" y="{}" text-anchor="middle">step</text>').format(
        (LEFT + RIGHT) / 2, HEIGHT - 3
    )
    yield Markup('<text x="{}" y="14">time per step</text>').format(LEFT)


def ticks(top: float, about: int) -> list[float]:
    """Round values from 0 to `top`, about `about` of them."""
    [size] = _nice(top, about) or [1.0]
    return [i * size for i in range(int(top / size) + 1)]


def _nice(extent: float, about: int) -> list[float]:
    """The round distance between ticks: 1, 2 or 5 times a power of ten."""
    if extent <= 0:
        return []
    rough = extent / about
    power = 10.0 ** math.floor(math.log10(rough))
    return [next(m * power for m in (1, 2, 5, 10) if m * power >= rough)]


def _time(ns: float, axes: Axes) -> str:
    """A label in the unit of the axis's largest value."""
    scale, unit = next(((s, u) for s, u in units.SCALES if axes.top_ns >= s), units.SCALES[-1])
    return f"{ns / scale:g} {unit}"


def _curve(points: list[Bucket], axes: Axes) -> Iterator[Markup]:
    upper = [(axes.x((p.first + p.last) / 2), axes.y(p.high_ns)) for p in points]
    lower = [(axes.x((p.first + p.last) / 2), axes.y(p.low_ns)) for p in points]
    middle = [(axes.x((p.first + p.last) / 2), axes.y(p.median_ns)) for p in points]
    if any(point.first != point.last for point in points):
        yield Markup('<path class="band" d="M{}Z"/>').format(_path(upper + lower[::-1]))
    # "h0" draws a single step as a dot
    yield Markup('<path class="curve" d="M{}h0"/>').format(_path(middle))
    for point in points:
        if point.high_ns > axes.top_ns:
            x = axes.x((point.first + point.last) / 2)
            yield Markup('<path class="off" d="M{} {}l-5 8h10Z"/>').format(x, TOP)


def _path(corners: list[tuple[float, float]]) -> str:
    return "L".join(f"{x:g} {y:g}" for x, y in corners)


def _onset(diagnosis: Diagnosis, axes: Axes) -> Iterator[Markup]:
    """Marks the step at which the first verdict begins."""
    steps = diagnosis.verdicts[0].steps if diagnosis.verdicts else None
    if steps is None or not axes.first < steps[0] <= axes.last + 1:
        return
    x = axes.x(steps[0] - 0.5)
    anchor, shift = ("end", -6) if x > (LEFT + RIGHT) / 2 else ("start", 6)
    yield Markup(
        '<line class="onset" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>'
        '<text class="onset-label" x="{3}" y="{4}" text-anchor="{5}">since step {6}</text>'
    ).format(x, TOP - 6, BOTTOM, x + shift, TOP + 6, anchor, steps[0])


def _hovers(points: list[Bucket], axes: Axes) -> Iterator[Markup]:
    for point in points:
        left, right = axes.x(point.first - 0.5), axes.x(point.last + 0.5)
        yield Markup(
            '<rect class="hover" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
        ).format(left, TOP, round(right - left, 1), BOTTOM - TOP, _hover_text(point))


def _hover_text(point: Bucket) -> str:
    steps = units.span((point.first, point.last))
    if point.first == point.last:
        return f"{steps}: {units.duration(point.high_ns)}"
    low, high = units.duration(point.low_ns), units.duration(point.high_ns)
    return f"{steps}: {low} to {high}, median {units.duration(point.median_ns)}"


def range_of(diagnosis: Diagnosis) -> str:
    """The range of step times in words, for the heading of the chart."""
    took = diagnosis.series.duration_ns
    if not took:
        return ""
    low, high = units.duration(min(took)), units.duration(max(took))
    return f"median {units.duration(median(took))}, {low} to {high}"
