"""Columns of one job over a step or time range: the input of every diagnosis method.

`table` has the columns, `numbering` numbers equal rows, `intervals` computes covered time.
"""

from stepscope.window.gathering import gathered
from stepscope.window.intervals import Union, count_until, union
from stepscope.window.numbering import (
    first_rows,
    numbered,
    occurrence,
    ordered,
    ranges,
    rows_by,
    runs,
    stable_order,
)
from stepscope.window.table import (
    NULL,
    PART,
    UNKNOWN_STEP,
    Column,
    Floats,
    Ints,
    Mask,
    Rows,
    Strings,
    Table,
    Window,
    distinct,
    joined,
    known_steps,
    taken,
    unknown,
)

__all__ = [
    "NULL",
    "PART",
    "UNKNOWN_STEP",
    "Column",
    "Floats",
    "Ints",
    "Mask",
    "Rows",
    "Strings",
    "Table",
    "Union",
    "Window",
    "count_until",
    "distinct",
    "first_rows",
    "gathered",
    "joined",
    "known_steps",
    "numbered",
    "occurrence",
    "ordered",
    "ranges",
    "rows_by",
    "runs",
    "stable_order",
    "taken",
    "union",
    "unknown",
]
