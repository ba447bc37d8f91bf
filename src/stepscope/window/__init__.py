"""Columns of one job over a step or time range: what every diagnosis method receives.

`table` has the columns, `numbering` tells which rows are alike, `intervals` what is covered.
"""

from stepscope.window.intervals import Union, union
from stepscope.window.numbering import numbered, occurrence, stable_order
from stepscope.window.table import (
    NULL,
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
    taken,
)

__all__ = [
    "NULL",
    "Column",
    "Floats",
    "Ints",
    "Mask",
    "Rows",
    "Strings",
    "Table",
    "Union",
    "Window",
    "distinct",
    "joined",
    "numbered",
    "occurrence",
    "stable_order",
    "taken",
    "union",
]
