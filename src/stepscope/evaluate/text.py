"""Results as tables in plain text and in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepscope.evaluate import less_data, papers, table
from stepscope.evaluate.intervals import Median, Rate
from stepscope.evaluate.results import Comparison, Results
from stepscope.evaluate.runner import Result
from stepscope.evaluate.table import Measure, Row

HEAD = ("fault", "jobs", "costly", "culprit first", "all culprits", "cause", "device",
        "false alarms", "victims accused", "steps to verdict", "diagnosis")  # fmt: skip
_METHODS_HEAD = ("method", "culprit first", "cause", "alarms on healthy", "innocents accused")
NOTHING = "-"
_COMPARED = ("", "stepscope", "paper")
_FAILED = "These jobs failed and count as jobs without a verdict:"
_MOST_CHANGES = 40


def render(results: Results) -> str:
    """All scores of a run: the table, hangs, the papers' measures, and reliability."""
    parts = [f"{about(results)}\n"]
    if results.conditions:
        parts.append(aligned(less_data.lines(results.results)))
    else:
        parts.append(aligned([HEAD, *map(cells, _rows(results))]))
        for title, measures in sections(results.results):
            lines = [_COMPARED, *((one.what, one.ours, one.theirs) for one in measures)]
            parts.append(f"\n{title}\n{aligned(lines)}")
    parts.append(f"\n{less_data.RELIABILITY}\n{aligned(less_data.by_confidence(results.results))}")
    if results.failed:
        failed = [f"  {one.id}: {one.failed}\n" for one in results.failed]
        parts += [f"\n{_FAILED}\n", *failed]
    if results.unfit:
        parts.append(f"\nNo job of this suite fits {', '.join(results.unfit)}.\n")
    return "".join(parts)


def render_methods(default: Results, others: Mapping[str, Results]) -> str:
    """The scores of methods that ran alone on the same jobs, beside the default's."""
    rows = [_METHODS_HEAD, _method_row("default", default)]
    rows += [_method_row(name, results) for name, results in others.items()]
    return f"Methods alone, beside the default, on the same jobs\n{aligned(rows)}"


def _method_row(name: str, results: Results) -> tuple[str, ...]:
    some = results.results
    healthy = [one for one in some if table.is_healthy(one) and not one.failed]
    whole = table.total(some)
    alarms = table.rate_of_alarms(healthy)
    return (name, *map(_share, (whole.found, whole.cause, alarms, whole.accused)))


def markdown(results: Results) -> str:
    """The same as Markdown, for the documentation."""
    if results.conditions:
        return _markdown_of_conditions(results)
    rows = [cells(row, short=True) for row in _rows(results)]
    found = [about(results), "", *in_markdown([_SHORT_HEAD, *rows])]
    for title, measures in sections(results.results):
        lines = [(m.what, m.ours, m.theirs) for m in measures]
        found += ["", f"**{title}**", "", *in_markdown([_COMPARED, *lines])]
    found += ["", f"**{less_data.RELIABILITY}**", "",
              *in_markdown(less_data.by_confidence(results.results))]  # fmt: skip
    if results.failed:
        found += ["", _FAILED, "",
                  *(f"- {one.id}: `{one.failed}`" for one in results.failed)]  # fmt: skip
    return "\n".join(found) + "\n"


def _markdown_of_conditions(results: Results) -> str:
    some = results.results
    found = [about(results), "", *in_markdown(less_data.lines(some, short=True)), "",
             f"**{less_data.RELIABILITY}**", "",
             *in_markdown(less_data.by_confidence(some))]  # fmt: skip
    return "\n".join(found) + "\n"


def render_changes(comparison: Comparison) -> str:
    """The jobs whose scores got better or worse."""
    worse = len(comparison.worse)
    better = len(comparison.changes) - worse
    lines = [f"{comparison.common} jobs in both: {better} scores better, {worse} worse"]
    if comparison.only_before or comparison.only_after:
        lines.append(f"only in the first: {comparison.only_before}, only in the second: "
                     f"{comparison.only_after}")  # fmt: skip
    ordered = [*comparison.worse, *(one for one in comparison.changes if one.better)]
    lines += [f"  {'better' if one.better else 'worse '}  {one.id}: {one.what}"
              for one in ordered[:_MOST_CHANGES]]  # fmt: skip
    if len(ordered) > _MOST_CHANGES:
        lines.append(f"  and {len(ordered) - _MOST_CHANGES} more")
    return "\n".join(lines) + "\n"


def sections(some: Sequence[Result]) -> list[tuple[str, list[Measure]]]:
    """Hangs, and each paper's measures; a section without data is left out."""
    hangs = [
        Measure("reported as a hang", table.f1_in_words(table.hangs_reported(some)), NOTHING),
        Measure("with the right rank", table.f1_in_words(table.hangs_found(some)), NOTHING),
    ]
    sizes = table.by_size(some)
    found = [
        ("By size", sizes if len(sizes) > 1 else []),
        ("Hangs, all simulated jobs", hangs if any(one.score.hangs for one in some) else []),
        ("Holmes' measure: irregularities localised", papers.of_holmes(some)),
        ("VenusTrace's measure: faults at random positions", papers.of_venustrace(some)),
        ("ARGUS, Table 6", papers.of_argus(some)),
        ("ARGUS, case studies", papers.of_argus_cases(some)),
    ]
    return [(title, measures) for title, measures in found if measures]


def _rows(results: Results) -> list[Row]:
    rows = table.rows(results.results)
    return [*rows, table.total(results.results)] if len(rows) > 1 else rows


_SHORT_HEAD = ("fault", "jobs", "first", "all", "cause", "device", "alarms", "victims", "steps")


def cells(row: Row, short: bool = False) -> tuple[str, ...]:
    """One row of the table; `short`: without the columns that do not fit on a page."""
    rates = [row.found, row.complete, row.cause, row.device, row.alarms, row.accused]
    if short:
        return (row.name, f"{row.costly}/{row.jobs}{_failed(row)}", *map(_counts, rates),
                _steps(row.steps))  # fmt: skip
    seconds = NOTHING if row.seconds is None else f"{row.seconds.value:.2f} s"
    return (row.name, f"{row.jobs}{_failed(row)}", str(row.costly), *map(_share, rates),
            _steps(row.steps), seconds)  # fmt: skip


def _failed(row: Row) -> str:
    return f", {row.failed} failed" if row.failed else ""


def _share(one: Rate) -> str:
    if one.value is None:
        return NOTHING
    low, high = one.interval
    return f"{100 * one.value:.0f}% ({100 * low:.0f}-{100 * high:.0f})"


def _counts(one: Rate) -> str:
    if not one.of:
        return NOTHING
    low, high = one.interval
    return f"{one.hits}/{one.of} ({100 * low:.0f}-{100 * high:.0f} %)"


def _steps(one: Median | None) -> str:
    if one is None:
        return NOTHING
    same = one.low == one.high
    return f"{one.value:g}" if same else f"{one.value:g} ({one.low:g}-{one.high:g})"


def about(results: Results) -> str:
    """One line that says which jobs were run."""
    source = "straight from the simulator" if results.fast else "via wire, processor and store"
    missing = _count(results.missing, "job")
    rest = f"; interrupted, {missing} not run" if results.missing else ""
    times = max(len(results.conditions), 1)
    each = f", each diagnosed {times} times" if times > 1 else ""
    jobs = _count(len(results.results) // times, "simulated job")
    seeds = _count(len(results.seeds), "seed")
    return (f"Suite {results.suite}, {jobs}{each} ({seeds}), {source}; "
            f"stepscope {results.version}{rest}")  # fmt: skip


def _count(number: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def aligned(lines: Sequence[tuple[str, ...]]) -> str:
    """A table in plain text."""
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        + "\n"
        for line in lines
    )


def in_markdown(lines: Sequence[tuple[str, ...]]) -> list[str]:
    """The lines of a table in Markdown."""
    head, *rest = [f"| {' | '.join(line)} |" for line in lines]
    return [head, "|" + "---|" * len(lines[0]), *rest]
