"""Turns the output of the jobs of `benchmarks/gpu.py` into the rows of its table.

Goals are those that were set for the native collectors: overhead under 1 % for a transformer with
everything on, one record per launch, durations within 5 % of CUDA's events, torch.profiler
undisturbed, the delayed one of two ranks named, no memory growth.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.processor.counters.frames import Failure, Frame, Lost, Samples

MODES = ("none", "idle", "cupti", "all")
"""No stepscope; CUPTI's library loaded but not selected; `--native cupti`; all collectors."""
MOST_OVERHEAD = 1.01
CLOSE = 0.05
FLAT_BYTES = 8 << 20
"""Allowed growth of a process between the first and the last third of a soak. Allocators and caches
settle within some megabytes; a leak of one 64-byte record in a thousand shows after 130 million."""


HANDED_OVER_SECONDS = 5.0
"""A profiler prepares, and starts and stops CUPTI, before and after the steps that it records."""


@dataclass(frozen=True)
class Row:
    """One line of the table; `holds` is None if there is no goal, or nothing was run."""

    what: str
    result: str
    goal: str = ""
    holds: bool | None = None


def order(turn: int) -> tuple[str, ...]:
    """The modes of one round, in alternating direction, so that a drift favours none of them."""
    return MODES if turn % 2 == 0 else MODES[::-1]


def upper_bound(ratios: Sequence[float], rounds: int = 10_000) -> float:
    """95 % upper confidence bound of the median, by bootstrap."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(rounds))
    return medians[int(0.95 * rounds)]


def overhead_rows(case: str, seconds: Mapping[str, Sequence[float]], has_goal: bool) -> list[Row]:
    """Of one model: each mode against the runs without us of the same rounds.

    Args:
        seconds: step times by mode, one of each round, in order.
        has_goal: whether the goal is about this model; all of its rows must reach it then.
    """
    base = seconds["none"]
    rows = [Row(f"{case}: step", f"{1e3 * statistics.median(base):.2f} ms ({len(base)} rounds)")]
    for mode in MODES[1:]:
        ratios = [one / other for one, other in zip(seconds[mode], base, strict=True)]
        bound = upper_bound(ratios)
        result = f"{statistics.median(ratios):.4f}, at most {bound:.4f}"
        goal = f"under {MOST_OVERHEAD}" if has_goal else ""
        rows.append(Row(f"{case}: {mode}", result, goal, bound < MOST_OVERHEAD if goal else None))
    return rows


def turns_rows(case: str, blocks: Mapping[str, Sequence[float]], has_goal: bool) -> list[Row]:
    """Times of blocks of steps of processes in turn, compared with those of `none`: means, and
    their 95 % interval by bootstrap over rounds. Medians would leave out what a part costs."""
    plain = blocks["none"]
    rows = [Row(f"{case}: step", f"{1e3 * statistics.mean(plain):.2f} ms ({len(plain)} rounds)")]
    for mode, times in blocks.items():
        if mode == "none":
            continue
        rounds = list(zip(plain, times, strict=True))
        low, high = _interval(rounds)
        result = f"{_ratio(rounds):.4f}, {low:.4f} to {high:.4f}"
        goal = f"under {MOST_OVERHEAD}" if has_goal and mode == "all" else ""
        row = Row(f"{case}, in turns: {mode}", result, goal, high < MOST_OVERHEAD if goal else None)
        rows.append(row)
    return rows


def _interval(rounds: Sequence[tuple[float, float]], draws: int = 2_000) -> tuple[float, float]:
    draw = random.Random(0)
    ratios = sorted(_ratio(draw.choices(rounds, k=len(rounds))) for _ in range(draws))
    return ratios[draws // 40], ratios[-draws // 40]


def _ratio(rounds: Sequence[tuple[float, float]]) -> float:
    return sum(recorded for _, recorded in rounds) / sum(plain for plain, _ in rounds)


def paired_row(without: Sequence[float], recording: Sequence[float], kernels: int) -> Row:
    """Times of blocks of steps in pairs: without recording, and while every kernel is recorded.

    Args:
        kernels: how many kernels, copies and memsets a step launches; 0: unknown.
    """
    ratios = [on / off for off, on in zip(without, recording, strict=True)]
    more_s = statistics.median(on - off for off, on in zip(without, recording, strict=True))
    each = f", {1e6 * more_s / kernels:.2f} µs for each of {kernels}" if kernels else ""
    result = f"{statistics.median(ratios):.4f}, at most {upper_bound(ratios):.4f}{each}"
    return Row(f"every kernel recorded, {len(ratios)} pairs", result)


def launches_row(launched: int, recorded: int, lost: int) -> Row:
    result = f"{launched} launched, {recorded} recorded, {lost} counted as lost"
    return Row("launches", result, "each one recorded", recorded == launched and lost == 0)


def close_row(what: str, recorded_ns: float, events_ns: float) -> Row:
    """Compares a duration that we recorded with the job's own CUDA events."""
    off = recorded_ns / events_ns - 1
    result = f"{recorded_ns / 1e6:.3f} ms, events {events_ns / 1e6:.3f} ms ({off:+.1%})"
    return Row(what, result, f"within {CLOSE:.0%}", abs(off) <= CLOSE)


def profiler_rows(count: int, profiled: int, recorded: int) -> list[Row]:
    """Three phases with the same number of launches; torch.profiler was active in the second."""
    profiled_row = Row(
        "torch.profiler in mid-run", f"{profiled} of {count} kernels", "all", profiled == count
    )
    ours = f"{recorded} of {2 * count} kernels around it recorded"
    return [profiled_row, Row("recording after it", ours, "all", recorded == 2 * count)]


def ranks_row(slow: int, verdicts: Sequence[Mapping[str, object]]) -> Row:
    named = [verdict.get("ranks") for verdict in verdicts]
    return Row(
        "two ranks on one GPU, one delayed", f"ranks named: {named}", f"[{slow}]", named == [[slow]]
    )


def plugin_row(operators: int, transfers: int) -> Row:
    """Two ranks over sockets: NCCL loaded our plugin, and reported both to it."""
    result = f"{operators} operators with their algorithm, {transfers} rows of transfers"
    return Row("NCCL's plugin", result, "some of both", operators > 0 and transfers > 0)


def window_row(asked: str, kernels: int) -> Row:
    """A window of profiling by hand; `kernels` patterns of kernels came out of it."""
    result = f"{kernels} patterns of kernels; {asked[-120:]}"
    return Row("a window in mid-run", result, "some", kernels > 0)


def around_row(output: Mapping[str, float], recorded: int, profiled_seconds: float) -> Row:
    """Steps that launch equally many kernels: only those of the window may be missing.

    Args:
        output: `count` kernels were launched in `seconds`.
        profiled_seconds: the length of the window, during which kernels are torch.profiler's.
    """
    missing = output["count"] - recorded
    most = output["count"] / output["seconds"] * (profiled_seconds + HANDED_OVER_SECONDS)
    result = f"{recorded} of {output['count']} kernels recorded, window {profiled_seconds:.1f} s"
    goal = f"at most {most:.0f} missing"
    return Row("recording around a window", result, goal, 0 <= missing <= most)


def memory_rows(samples: Sequence[Mapping[str, int]], records: int) -> list[Row]:
    """Compares the last third of a soak with its first."""
    third = max(len(samples) // 3, 1)
    rows = []
    for key in ("rss_bytes", "gpu_bytes"):
        first, last = ([one[key] for one in part] for part in (samples[:third], samples[-third:]))
        grown = statistics.median(last) - statistics.median(first)
        result = f"{grown / 2**20:+.1f} MiB over {len(samples)} s, {records} launches"
        rows.append(Row(f"soak: {key}", result, "flat", abs(grown) <= FLAT_BYTES))
    return rows


def counters_row(hz: float, frames: Sequence[Frame], cpu_seconds: float) -> Row:
    """One window of a GPU's counters."""
    what = f"counters at {hz:,.0f} Hz"
    pieces = [one.of for one in frames if isinstance(one, Samples)]
    if not pieces:
        why = next((one.why for one in frames if isinstance(one, Failure)), "no reason given")
        return Row(what, f"not sampled: {why}", "none lost")
    samples = np.concatenate(pieces)
    lost = sum(one.samples for one in frames if isinstance(one, Lost))
    low, usual, high = np.percentile(samples["end_ns"] - samples["start_ns"], (1, 50, 99)) / 1e3
    seconds = float(samples["end_ns"][-1] - samples["start_ns"][0]) / 1e9
    result = (
        f"{len(samples)} samples, {lost} lost, of {usual:.1f} µs ({low:.1f} to {high:.1f}), "
        f"{cpu_seconds / seconds:.1%} of a core"
    )
    close = bool(abs(usual * hz / 1e6 - 1) <= CLOSE)
    return Row(what, result, f"none lost, periods within {CLOSE:.0%}", close and lost == 0)


def table(rows: Sequence[Row]) -> str:
    """As Markdown, ready for docs/measurements.md."""
    word = {True: "yes", False: "NO", None: ""}
    lines = ["| what | result | goal | holds |", "|---|---|---|---|"]
    return "\n".join(
        lines + [f"| {r.what} | {r.result} | {r.goal} | {word[r.holds]} |" for r in rows]
    )
