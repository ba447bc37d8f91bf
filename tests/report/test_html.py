"""The page: one file, no network, nothing of the job's names taken for markup, small."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import re
from html.parser import HTMLParser

import pytest

from stepscope.diagnose.finding import Diagnosis, Evidence, Value
from stepscope.diagnose.shown import ClockFit, RankPhase, StepSeries
from stepscope.report.html import render_html

from .golden import check_golden
from .samples import SAMPLES, hang, rank_phases, series, slow_rank

VOID = {"meta", "br", "link", "img", "hr", "input"}
EVIL = "<script>alert(1)</script>\"'&"


class Page(HTMLParser):
    """Checks that tags nest, and keeps the visible text, the tags and the attributes."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(source)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.attributes if key == name]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_page_is_well_formed_and_needs_no_network(name: str) -> None:
    source = render_html(SAMPLES[name]())
    page = Page(source)
    assert not page.tags & {"script", "link", "img", "iframe"}
    assert not {"src", "href"} & {key for key, _ in page.attributes}
    assert "http" not in source.replace("http-equiv", "")
    assert "url(" not in source


@pytest.mark.parametrize("name", ["traces", "one_trace", "many_traces"])
def test_the_page_of_a_trace_is_what_the_golden_file_says(name: str) -> None:
    """What stands between its styles and its end."""
    body = render_html(SAMPLES[name]()).partition("<body>\n")[2]
    check_golden(f"{name}.html", body)


def test_the_page_says_what_matters() -> None:
    text = Page(render_html(slow_rank())).text
    for expected in (
        "rank 37 computes 1.9x slower", "18% of step time", "slow compute", "step 1100",
        "drain host-004", "host-004/gpu-5", "argus-l2", "no table transfers", "12,410 rows",
        "-3.41 ms",
    ):  # fmt: skip
        assert expected in text
    assert "0.21 ms" not in text, "a clock this close to the others interests nobody"


def test_unknown_values_of_evidence_are_left_out() -> None:
    values: dict[str, Value] = {"waiting": [0, 1], "older_dump": [], "lag_ns": float("nan")}
    verdict = dataclasses.replace(hang().verdicts[0], evidence=(Evidence("desync", "so", values),))
    text = Page(render_html(dataclasses.replace(hang(), verdicts=(verdict,)))).text
    assert "waiting\xa00, 1" in text
    assert "older dump" not in text
    assert "lag" not in text


def test_a_hang_without_steps_began_at_a_time_of_day() -> None:
    verdict = dataclasses.replace(hang().verdicts[0], steps=None)
    page = render_html(dataclasses.replace(hang(), steps=None, verdicts=(verdict,)))
    assert '<p class="value">19:33:20 UTC</p><p class="note">2025-12-17, for 1 h 07 min</p>' in page


def test_a_hang_shows_the_stack() -> None:
    assert "save_checkpoint (train.py:88)" in Page(render_html(hang())).text


def test_names_are_never_markup() -> None:
    verdict = dataclasses.replace(
        slow_rank().verdicts[0], summary=EVIL, advice=EVIL, hosts=(EVIL,), phase=EVIL,
        function=EVIL, kernels=(EVIL,), group=EVIL, stack=(EVIL,),
    )  # fmt: skip
    evil = dataclasses.replace(
        slow_rank(),
        job_id=EVIL,
        verdicts=(verdict, verdict),
        clocks=(ClockFit(EVIL, 10**9, 0.0),),
        losses={EVIL: 3},
        cost={EVIL: 1.0},
    )
    for ranks in (4, 64):
        own = tuple(RankPhase(rank, EVIL, 10**6) for rank in range(ranks))
        page = Page(render_html(dataclasses.replace(evil, rank_phases=own)))
        assert "script" not in page.tags
        assert EVIL in page.text


def test_names_that_no_encoding_takes_do_not_stop_it() -> None:
    render_html(dataclasses.replace(slow_rank(), job_id="\udcff\x00")).encode()


@pytest.mark.parametrize(("ranks", "limit"), [(64, 200_000), (1024, 400_000)])
def test_the_page_stays_small(ranks: int, limit: int) -> None:
    ragged = {(rank, "optimizer"): 1.5 for rank in range(0, ranks, 3)}
    diagnosis = dataclasses.replace(
        slow_rank(), series=series(0, 1999, 1100, 1.5), rank_phases=rank_phases(ranks, ragged)
    )
    assert len(render_html(diagnosis).encode()) < limit


def test_a_single_slow_step_among_thousands_stays_visible() -> None:
    took = [10**9] * 20_000
    took[12_345] = 9 * 10**9
    diagnosis = Diagnosis("j", 8, "jitter", series=StepSeries(tuple(range(20_000)), tuple(took)))
    page = Page(render_html(diagnosis))
    assert re.search(r"steps 12\d+-12\d+: 1.00 s to 9.00 s", page.text)
    assert "off" in page.values("class"), "and is marked as beyond the scale"


def test_ten_thousand_ranks_share_columns_and_the_culprit_stays_visible() -> None:
    own = rank_phases(10_000, {(7777, "forward-compute"): 3.0})
    source = render_html(dataclasses.replace(slow_rank(), verdicts=(), rank_phases=own))
    assert "rank 7777, forward-compute" in source
    assert len(source) < 500_000


def test_one_step_and_no_steps() -> None:
    one = Diagnosis("j", 1, "healthy", (5, 5), series=StepSeries((5,), (10**6,)))
    assert "step 5: 1.00 ms" in Page(render_html(one)).text
    assert "Step time" not in Page(render_html(Diagnosis("j", 1, "healthy"))).text


def test_control_characters_in_names_do_not_reach_the_page() -> None:
    evil = "\x1b]0;owned\x07\x9b31m\x00\x7f"
    verdict = dataclasses.replace(slow_rank().verdicts[0], summary=evil, phase=evil)
    page = render_html(dataclasses.replace(slow_rank(), job_id=evil, verdicts=(verdict,)))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", page)


def test_a_browser_may_only_use_our_own_style() -> None:
    """Even if a name became markup, nothing would run, and nothing would be loaded."""
    page = render_html(slow_rank())
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    rules = html.unescape(policy).split("; ")
    assert rules[:2] == ["default-src 'none'", f"style-src 'sha256-{digest}'"]
    assert "style" not in {name for name, _ in Page(page).attributes}
