"""Results as one HTML file that opens anywhere, without a network."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from stepscope.evaluate import chart, less_data, table
from stepscope.evaluate.results import Results
from stepscope.evaluate.score import Score
from stepscope.evaluate.text import HEAD, about, cells, sections


def render_page(results: Results) -> str:
    """The whole page: plots, the table, the papers' measures, and every wrong diagnosis."""
    environment = Environment(
        loader=PackageLoader("stepscope.evaluate"), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=StrictUndefined,
    )  # fmt: skip
    some = [one for one in results.results if not one.condition]
    rows = [*table.rows(some), table.total(some)]
    charts = {
        "Culprit first": chart.rates(rows, lambda row: row.found),
        "Cause right": chart.rates(rows, lambda row: row.cause),
        "Device right": chart.rates(rows, lambda row: row.device),
        "False alarms, in jobs that deserve no verdict": chart.rates(
            rows, lambda row: row.alarms, wanted=False
        ),
        "Jobs with innocent ranks accused": chart.rates(
            rows, lambda row: row.accused, wanted=False
        ),
        "Culprit first, by size": chart.sizes(chart.by_ranks(some)),
        "Jobs by number of steps from onset to verdict": chart.looks(some),
    }
    return environment.get_template("evaluation.html.j2").render(
        about=about(results), charts={name: one for name, one in charts.items() if one},
        head=HEAD, lines=[cells(row) for row in rows], sections=sections(some),
        tables=_tables(results),
        wrong=[one for one in results.results if one.failed or is_wrong(one.score)],
    )  # fmt: skip


def _tables(results: Results) -> dict[str, list[tuple[str, ...]]]:
    """More tables, each with its head as the first line."""
    found = {less_data.RELIABILITY: less_data.by_confidence(results.results)}
    if results.conditions:
        found = {"With less data": less_data.lines(results.results), **found}
    return found


def is_wrong(score: Score) -> bool:
    """Whether the culprit was missed, or somebody innocent was named."""
    return bool(score.found is False or score.alarms or score.accused)
