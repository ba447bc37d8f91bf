"""Renders rank times as small tables for terminals."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stepscope.diagnose.finding import Diagnosis
from stepscope.report import units
from stepscope.report.plain import printable
from stepscope.report.rank_map import RankMap, culprit_ranks, named_phases, rank_map, time_map

ALL_RANKS = 16
"""Up to this number of ranks, each has its line."""
SHOWN_RANKS = 8
"""Beyond it, the number of lines: culprits and the most unusual others; none if all are alike."""
_INDENT = 2
_COLUMN = 20
"""The widest column of a phase; longer names are truncated."""
_BETWEEN = 3
"""Two columns of padding, and one for the blank divider of this box style."""
UNUSUAL = 0.1
"""A time with at least this excess is coloured; smaller differences are noise."""


def rank_tables(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    """Time per step by rank: by phase, and by activity of the device, if known."""
    own = rank_map(diagnosis)
    shown = _shown(diagnosis, own)
    if shown:
        title = "Own time per step without waiting"
        yield from ("", *_rank_table(diagnosis, title, own, shown, width))
    times = time_map(diagnosis)
    if times.ranks:
        title = "Where an average step goes"
        yield from ("", *_rank_table(diagnosis, title, times, _shown(diagnosis, times), width))


def _shown(diagnosis: Diagnosis, own: RankMap) -> list[int]:
    """The ranks to show: of many ranks only the unusual ones."""
    if len(own.ranks) <= ALL_RANKS:
        return list(own.ranks)
    return own.unusual(culprit_ranks(diagnosis))[:SHOWN_RANKS]


def _rank_table(
    diagnosis: Diagnosis, title: str, own: RankMap, shown: list[int], width: int
) -> Iterator[RenderableType]:
    """A line for each of these ranks, and the median of all."""
    culprits = culprit_ranks(diagnosis)
    phases = _fitting(named_phases(diagnosis, own), width - _INDENT)
    yield Text(_title(title, own, len(shown), len(phases)), style="bold")
    table = _empty(phases)
    for rank in shown:
        style = "bold red" if rank in culprits else ""
        table.add_row(Text(f"{rank}", style), *(_cell(own, rank, phase) for phase in phases))
    if len(own.ranks) > 1:
        usual = (units.duration(own.medians[phase]) for phase in phases)
        table.add_row("median", *usual, style="dim")
    yield Padding(table, (0, 0, 0, _INDENT))


def _fitting(phases: tuple[str, ...], width: int) -> tuple[str, ...]:
    """As many phases as fit into the width, at least one."""
    room, fitting = width - len("median  "), 0
    for phase in phases:
        room -= min(max(len(phase), len("1,234 ms")), _COLUMN) + _BETWEEN
        fitting += room >= 0
    return phases[: max(fitting, 1)]


def _title(title: str, own: RankMap, ranks: int, phases: int) -> str:
    if not ranks:
        title += f" ({units.count(len(own.ranks), 'rank')}, no outliers)"
    elif ranks < len(own.ranks):
        title += f" ({ranks} of {units.count(len(own.ranks), 'rank')}: culprits and outliers)"
    return title + (f", {phases} of {len(own.phases)} columns" if phases < len(own.phases) else "")


def _empty(phases: tuple[str, ...]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, safe_box=True,
        show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim",
    )  # fmt: skip
    table.add_column("rank", justify="right")
    for phase in phases:
        name = Text(printable(phase))
        table.add_column(name, justify="right", overflow="ellipsis", max_width=_COLUMN)
    return table


def _cell(own: RankMap, rank: int, phase: str) -> Text:
    time, excess = own.own_ns(rank, phase), own.excess(rank, phase)
    if time is None or excess is None:
        return Text("-", "dim")
    return Text(units.duration(time), "red" if excess >= UNUSUAL else "")
