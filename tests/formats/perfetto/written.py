"""Traces as stepscope writes them, and what is read from them."""

from __future__ import annotations

from pathlib import Path

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.prepare.align import align
from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.prepare.operator_waits import with_operator_waits
from stepscope.diagnose.run import diagnose
from stepscope.formats import perfetto
from stepscope.perfetto.members import packed
from stepscope.report.perfetto import Scene, draw, span_of
from stepscope.window import Column, Strings, Table, Window

HEALTHY = Diagnosis("job", 4, "healthy")


def timeline(window: Window, diagnosis: Diagnosis = HEALTHY) -> bytes:
    """The window as it is, uncompressed."""
    pieces: list[bytes] = []
    scene = Scene(window, diagnosis, span_of(window, diagnosis.verdicts), window.ranks)
    draw(scene, pieces.append, lambda _: None)
    return b"".join(pieces)


def as_traced(window: Window, path: Path) -> tuple[Diagnosis, Window]:
    """Does what `stepscope trace` does, and reads its file; the diagnosis is of the window."""
    diagnosis = diagnose(window)
    aligned, _, _ = align(clean(window)[0])
    path.write_bytes(packed(timeline(with_operator_waits(aligned), diagnosis)))
    reading = perfetto.read(path)
    assert reading.problems == ()
    return diagnosis, reading.window


def rows(table: Table, *names: str) -> list[tuple[object, ...]]:
    """The rows of some columns in an order of their own; null is NULL or None."""
    columns = [_values(table.columns[name]) for name in names]
    return sorted(zip(*columns, strict=True), key=_order)


def _order(row: tuple[object, ...]) -> tuple[object, ...]:
    return tuple((value is not None, value) for value in row)


def _values(column: Column) -> list[object]:
    if isinstance(column, Strings):
        return [column[at] for at in range(len(column))]
    return list(column.tolist())
