"""The patterns of one rank's profile, as rows of table `patterns`.

    python -m stepscope.patterns [TRACE] --rank 3 [--stacks FILE] [--counters FILE] [--phases FILE]
        [--window-start-ns N] [--window-end-ns N] [--first-step A] [--last-step B] [--out FILE]

TRACE is what torch.profiler wrote. The other files are tables of the job folder in Parquet:
`stacks`, `hardware` and `phases`. The window defaults to the steps of the trace, else to all of it,
else to all samples. Writes one Arrow IPC stream to FILE, else to standard output; its schema's
metadata says under `stepscope.left_out` how many functions are left out, and the sum of their beta.

Exit status: 0 written (perhaps no rows), 2 a file cannot be read, 3 a bug. Errors are one line on
standard error; so are problems with the trace, as `note: …`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stepscope.errors import SourceError, StepscopeError, UsageError
from stepscope.patterns.activity import Activity, Span
from stepscope.patterns.counters import counter_series, phase_series
from stepscope.patterns.rows import Patterns, kept, table_of
from stepscope.patterns.sampled import sampled_patterns, training_use
from stepscope.patterns.summary import patterns_of
from stepscope.patterns.use import Series
from stepscope.window import NULL, Column, Strings, Table

LEFT_OUT = "stepscope.left_out"


@dataclass(frozen=True)
class _Trace:
    """What is used of a trace; times are since 1970."""

    activity: Activity
    span: Span
    first_step: int
    last_step: int
    problems: tuple[str, ...]


def main(words: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(words)
    try:
        found, steps = _patterns(given)
        _write(arrow_stream(found, given.rank, *steps), given.out)
    except StepscopeError as error:
        return _failed(str(error), 2)
    except OSError as error:
        return _failed(f"cannot write {given.out or 'standard output'}: {error.strerror}", 2)
    return 0


def arrow_stream(found: Patterns, rank: int, first_step: int, last_step: int) -> bytes:
    """The rows as one Arrow IPC stream."""
    from stepscope.store.encode import arrow_table, rows_of

    table = table_of(found, first_step, last_step)
    columns = {"rank": np.full(len(table), rank, np.int64), **table.columns}
    rows = arrow_table("patterns", rows_of("patterns", Table(columns)))
    left_out = {"functions": found.left_out, "beta": round(found.left_out_beta, 6)}
    rows = rows.replace_schema_metadata({LEFT_OUT: json.dumps(left_out)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m stepscope.patterns", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("trace", nargs="?", type=Path, metavar="TRACE")
    parser.add_argument("--rank", type=int, required=True)
    for name in ("--stacks", "--counters", "--phases", "--out"):
        parser.add_argument(name, type=Path, metavar="FILE")
    for name in ("--window-start-ns", "--window-end-ns", "--first-step", "--last-step"):
        parser.add_argument(name, type=int, metavar="N")
    return parser


def _patterns(given: argparse.Namespace) -> tuple[Patterns, tuple[int, int]]:
    if given.trace is None and given.stacks is None:
        raise UsageError("nothing to summarize: give a trace, or --stacks")
    trace = _read_trace(given.trace) if given.trace else None
    stacks = _own(_read_table("stacks", given.stacks), given.rank) if given.stacks else None
    span = _span(given, trace, stacks)
    use = [training_use(stacks)] if stacks is not None else []
    use += phase_series(_read_table("phases", given.phases), given.rank) if given.phases else []
    if given.counters:
        use += counter_series(_read_table("hardware", given.counters), given.rank)
    found = patterns_of(trace.activity, span, _some(use)) if trace else Patterns(span, ())
    if stacks is not None:
        sampled = sampled_patterns(stacks, span, training=trace is None)
        found = replace(found, rows=(*found.rows, *sampled))
    for problem in trace.problems if trace else ():
        sys.stderr.write(f"note: {given.trace}: {' '.join(problem.split())}\n")
    return kept(found), _steps(given, trace)


def _some(use: Sequence[Series]) -> list[Series]:
    return [series for series in use if series.use.size]


def _steps(given: argparse.Namespace, trace: _Trace | None) -> tuple[int, int]:
    found = (trace.first_step, trace.last_step) if trace else (NULL, NULL)
    asked = (given.first_step, given.last_step)
    first, last = (own if one is None else one for one, own in zip(asked, found, strict=True))
    return first, last


def _span(given: argparse.Namespace, trace: _Trace | None, stacks: Table | None) -> Span:
    start, end = given.window_start_ns, given.window_end_ns
    if start is None or end is None:
        whole = trace.span if trace else _sampled_span(stacks)
        start = whole.start_ns if start is None else start
        end = whole.end_ns if end is None else end
    span = Span(start, end)
    if span.length_ns <= 0:
        raise UsageError(f"the window ends at {span.end_ns}, before it begins at {span.start_ns}")
    return span


def _sampled_span(stacks: Table | None) -> Span:
    if stacks is None or not len(stacks):
        raise SourceError("the stacks have no rows of this rank: give the window")
    start = stacks.ints("start_ns")
    end = start + np.maximum(stacks.ints("duration_ns"), 0)
    return Span(int(start.min()), int(end.max()))


def _read_trace(path: Path) -> _Trace:
    from stepscope.formats.kineto.rank_trace import read_activity

    read = read_activity(path)
    return _Trace(read.activity, read.span, *(read.steps or (NULL, NULL)), read.problems)


def _read_table(name: str, path: Path) -> Table:
    """The rows of a Parquet file."""
    from stepscope.store.decode import decode

    try:
        rows = decode(name, path.read_bytes())
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from None
    except SourceError as error:
        raise SourceError(f"{path} {error}") from None
    rows = rows.unify_dictionaries().combine_chunks()
    return Table({one: _column(rows[one]) for one in rows.column_names})


def _column(rows: Any) -> Column:
    """Numbers that are null are NULL, bools -1: one that is unknown is not false."""
    values: Any = rows.combine_chunks()
    if pa.types.is_dictionary(values.type):
        codes = values.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return Strings(codes.astype(np.int32), tuple(map(str, values.dictionary.to_pylist())))
    if pa.types.is_floating(values.type):
        return np.asarray(values.to_numpy(zero_copy_only=False), np.float64)
    unknown = -1 if pa.types.is_boolean(values.type) else NULL
    numbers = values.cast(pa.int64()).fill_null(unknown).to_numpy(zero_copy_only=False)
    return np.asarray(numbers, np.int64)


def _own(table: Table, rank: int) -> Table:
    return table.take(table.ints("rank") == rank)


def _write(data: bytes, out: Path | None) -> None:
    if out is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    unfinished.write_bytes(data)
    unfinished.replace(out)


def _failed(message: str, status: int) -> int:
    sys.stderr.write(f"stepscope.patterns: {' '.join(message.split())}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
