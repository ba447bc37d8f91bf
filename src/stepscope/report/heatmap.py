"""Draws own time by rank and phase as a heat map, to show which rank differs in which phase.

Up to sixteen ranks become a table with numbers. More ranks become a picture with one column per
rank, wrapped into blocks. Beyond 1,024 ranks, neighbours share a column, which shows the most
unusual of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from stepscope.report import units
from stepscope.report.rank_map import RankMap

TABLE_RANKS = 16
COLUMNS = 1024
PHASES = 12
"""At most this many phases are shown, the longest ones."""
WIDTH, LABELS, ROW, AXIS = 1000, 150, 18, 22

SHADES = (
    (1.0, "h4", "2x or longer"), (0.5, "h3", "+50%"), (0.25, "h2", "+25%"), (0.1, "h1", "+10%"),
    (-0.1, "n", "typical"), (-0.25, "b1", "-10%"), (-0.5, "b2", "-25%"),
)  # fmt: skip
"""The colour of a cell by its lowest excess; below all of them it is `SHORTEST`."""
SHORTEST = "b3"
LEGEND = ((SHORTEST, "half or less"), *((name, label) for _, name, label in reversed(SHADES)))


def shade(excess: float | None) -> str:
    """The CSS class of a cell."""
    if excess is None:
        return "x"
    return next((name for floor, name, _ in SHADES if excess >= floor), SHORTEST)


@dataclass(frozen=True)
class Cell:
    """One cell of the map: its colour, text and hover text."""

    shade: str
    text: str
    hover: str


def table_row(own: RankMap, rank: int) -> list[Cell]:
    """The row of a rank in the table."""
    return [_cell(own, rank, phase) for phase in own.phases[:PHASES]]


def _cell(own: RankMap, rank: int, phase: str) -> Cell:
    time, excess, median = own.own_ns(rank, phase), own.excess(rank, phase), own.medians[phase]
    if time is None or excess is None:
        return Cell("x", "-", f"rank {rank}, {phase}: not recorded")
    compared = f"{units.significant(time / median)}x the median" if median > 0 else "median"
    hover = f"rank {rank}, {phase}: {units.duration(time)}, {compared} of {units.duration(median)}"
    return Cell(shade(excess), units.duration(time), hover)


def heatmap(own: RankMap, culprits: frozenset[int], title: str) -> Markup:
    """The heat map for many ranks."""
    columns = _columns(own.ranks)
    per_block = 64 if len(columns) <= 256 else 128
    blocks = [columns[i : i + per_block] for i in range(0, len(columns), per_block)]
    height = AXIS + ROW * len(own.phases[:PHASES]) + 10
    drawn = [_block(own, block, culprits, per_block, height * i) for i, block in enumerate(blocks)]
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height * len(blocks), title, Markup("\n").join(drawn)
    )


def _columns(ranks: tuple[int, ...]) -> list[tuple[int, ...]]:
    share = -(-len(ranks) // COLUMNS)
    return [ranks[i : i + share] for i in range(0, len(ranks), share)]


def _block(
    own: RankMap, columns: list[tuple[int, ...]], culprits: frozenset[int], per_block: int, top: int
) -> Markup:
    width = (WIDTH - LABELS) / min(per_block, max(len(columns), 24))
    phases = own.phases[:PHASES]
    parts = [*_axis(columns, culprits, width)]
    for row, phase in enumerate(phases):
        parts += _row(own, columns, phase, AXIS + ROW * row, width)
    parts.append(_separators(len(columns), width, AXIS + ROW * len(phases)))
    return Markup('<g transform="translate(0 {})">{}</g>').format(top, Markup("").join(parts))


def _axis(
    columns: list[tuple[int, ...]], culprits: frozenset[int], width: float
) -> Iterator[Markup]:
    """Rank numbers above the columns, and a bar above each culprit."""
    label_step = max(1, round(len(columns) / 16))
    for i, ranks in enumerate(columns):
        found = sorted(culprits.intersection(ranks))
        if found:
            yield Markup(
                '<rect class="culprit" x="{:.1f}" y="{}" width="{:.1f}" height="4">'
                "<title>culprit: {}</title></rect>"
            ).format(LABELS + i * width, AXIS - 5, max(width, 3), units.ranks(found))
        if i % label_step == 0:
            yield Markup('<text x="{:.1f}" y="{}">{}</text>').format(
                LABELS + i * width, AXIS - 8, ranks[0]
            )


def _row(
    own: RankMap, columns: list[tuple[int, ...]], phase: str, top: int, width: float
) -> Iterator[Markup]:
    """One phase. Adjacent typical cells become one rectangle, which keeps the page small."""
    yield Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(
        LABELS - 8, top + ROW - 5, _short(phase)
    )
    oddest = [max(ranks, key=lambda rank: abs(own.excess(rank, phase) or 0)) for ranks in columns]
    shades = [shade(own.excess(rank, phase)) for rank in oddest]
    keys = [s if s in ("n", "x") else f"{s} {i}" for i, s in enumerate(shades)]
    for _, run in itertools.groupby(range(len(columns)), key=lambda i: keys[i]):
        indices = list(run)
        first, last = indices[0], indices[-1]
        yield Markup(
            '<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"><title>{}</title></rect>'
        ).format(
            shades[first], LABELS + first * width, top, (last - first + 1) * width, ROW - 2,
            _hover(own, [oddest[i] for i in indices], phase),
        )  # fmt: skip


def _hover(own: RankMap, ranks: list[int], phase: str) -> str:
    if len(ranks) == 1:
        return _cell(own, ranks[0], phase).hover
    times = [own.own_ns(rank, phase) for rank in ranks]
    known = [time for time in times if time is not None]
    if not known:
        return f"{units.ranks(ranks)}, {phase}: not recorded"
    low, high = units.duration(min(known)), units.duration(max(known))
    return f"{units.ranks(ranks)}, {phase}: {low} to {high}"


def _separators(columns: int, width: float, bottom: int) -> Markup:
    """Thin gaps between the columns, drawn once across all rows."""
    lines = "".join(f"M{LABELS + i * width:.1f} {AXIS}V{bottom}" for i in range(1, columns))
    return Markup('<path class="gaps" d="{}"/>').format(lines)


def _short(phase: str) -> str:
    return phase if len(phase) <= 21 else phase[:20] + "…"
