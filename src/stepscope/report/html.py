"""Renders a diagnosis as one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from stepscope.diagnose.finding import Diagnosis
from stepscope.report import beside, heatmap, story, tiles, trail, units
from stepscope.report.chart import range_of, step_chart
from stepscope.report.plain import printable
from stepscope.report.rank_map import culprit_ranks, rank_map, time_map
from stepscope.report.text import CLOCK_FLOOR_NS, LAST_ARRIVALS

STYLE = "templates/report.css"


def render_html(diagnosis: Diagnosis) -> str:
    """The whole page; all names from the job are escaped."""
    page = _template().render(
        diagnosis=diagnosis,
        own=rank_map(diagnosis),
        times=time_map(diagnosis),
        last_arrivals=LAST_ARRIVALS,
        culprits=culprit_ranks(diagnosis),
        chart=step_chart(diagnosis),
        step_range=range_of(diagnosis),
        title=_title(diagnosis),
        mood=_mood(diagnosis),
        max_candidates=trail.MAX_CANDIDATES,
        style=_style(),
        policy=_policy(),
        clocks=[clock for clock in diagnosis.clocks if abs(clock.offset_ns) >= CLOCK_FLOOR_NS],
    )
    return printable(page, kept="\n\t")


@lru_cache(maxsize=1)
def _style() -> str:
    return "\n" + resources.files("stepscope.report").joinpath(STYLE).read_text(encoding="utf-8")


def _policy() -> str:
    """What browsers may do with the page: show it, with our own style; run and load nothing."""
    digest = base64.b64encode(hashlib.sha256(_style().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("stepscope.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals |= {
        "story": story,
        "beside": beside,
        "units": units,
        "tiles": tiles,
        "heatmap": heatmap,
        "trail": trail,
    }
    return environment.get_template("report.html.j2")


def _mood(diagnosis: Diagnosis) -> str:
    """The colour of the header: `bad`, `good`, or `odd` if neither is certain."""
    if diagnosis.accused:
        return "bad"
    return "good" if diagnosis.outcome == "healthy" else "odd"


def _title(diagnosis: Diagnosis) -> str:
    """The page's title; with several culprits, each has its own heading further down."""
    if len(diagnosis.verdicts) == 1:
        return diagnosis.verdicts[0].summary
    if diagnosis.verdicts:
        return units.count(len(diagnosis.verdicts), "culprit") + ", most costly first"
    return story.headline(diagnosis).partition(": ")[2]
