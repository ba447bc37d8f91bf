"""Random rows survive, random damage never escapes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import FormatError
from stepscope.store.assemble import assembled
from stepscope.store.buffer import Chunks, concat
from stepscope.store.decode import decode
from stepscope.store.encode import arrow_table, parquet_bytes
from stepscope.trace import TABLES
from stepscope.window import NULL, Strings

from .samples import pairs, values

# the smallest int64 stands for null; text without surrogates is what UTF-8 can hold
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int64": st.integers(-(2**63) + 1, 2**63 - 1) | st.none(),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "double": st.floats(allow_nan=False) | st.none(),
    "bool": st.booleans(),
    "str": st.text(st.characters(exclude_categories=["Cs"])) | st.none(),
}


@st.composite
def rows_of(draw: st.DrawFn, table: str, first: int, size: int) -> dict[str, list[Any]]:
    spec = TABLES[table]
    columns = [n for n in spec.columns if n not in spec.optional or draw(st.booleans())]
    cells = {n: st.lists(VALUES[spec.columns[n]], min_size=size, max_size=size) for n in columns}
    rows = {name: draw(cells[name]) for name in columns}
    if "seq" in rows:  # operators that are told apart
        rows["seq"] = list(range(first, first + size))
    return rows


@pytest.mark.parametrize("table", TABLES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_table_survives_the_round_trip(table: str, data: st.DataObject) -> None:
    parts = [data.draw(rows_of(table, *part)) for part in ((0, 1), (1, 3), (4, 2))]
    files = [decode(table, parquet_bytes(arrow_table(table, rows))) for rows in parts]

    read = assembled(table, files, 0)

    columns = sorted(read.columns)
    assert columns == sorted({name for rows in parts for name in rows})
    written = [_row(table, rows, i, columns) for rows in parts for i in range(len(rows["rank"]))]
    found = list(zip(*(map(_plain, values(read, name)) for name in columns), strict=True))
    assert sorted(found, key=repr) == sorted(written, key=repr)
    order = pairs(read, "rank", TABLES[table].time)
    assert order == sorted(order, key=lambda pair: (pair[0], NULL if pair[1] is None else pair[1]))


def _row(table: str, rows: dict[str, list[Any]], i: int, columns: list[str]) -> tuple[Any, ...]:
    """What a row looks like when it is read."""
    null = {"double": float("nan"), "bool": False}
    cells = []
    for name in columns:
        cell = rows[name][i] if name in rows else None
        cells.append(_plain(null.get(TABLES[table].columns[name]) if cell is None else cell))
    return tuple(cells)


def _plain(cell: Any) -> Any:
    """Not a number equals nothing, its name does."""
    return repr(cell) if isinstance(cell, float) else cell


def test_columns_of_a_window_can_be_written_as_they_are() -> None:
    rows: dict[str, Any] = {
        "rank": np.array([0, 0]),
        "step": np.array([1, NULL]),
        "kernel": Strings(np.array([1, -1], np.int32), ("gemm", "copy")),
        "stream": np.array([7, 7]),
        "start_ns": np.array([1, 2]),
        "duration_ns": np.array([3, 4]),
    }
    piece = decode("kernels", parquet_bytes(arrow_table("kernels", rows)))
    read = assembled("kernels", [piece], len(piece))
    assert values(read, "step") == [1, None]
    assert values(read, "kernel") == ["copy", None]


def test_names_that_are_no_text_are_kept_as_far_as_they_go() -> None:
    rows = arrow_table(
        "losses",
        {
            "rank": [0, 0],
            "table": ["caf\udce9", None],
            "start_ns": [0, 0],
            "end_ns": [0, 0],
            "rows": [1, 1],
        },
    )
    assert rows["table"].to_pylist() == ["caf?", None]


@given(st.lists(st.integers(1, 5), min_size=1), st.integers(0, 20))
def test_chunks_drop_exactly_the_oldest(sizes: list[int], wanted: int) -> None:
    chunks, numbers = Chunks(), iter(range(1000))
    for size in sizes:
        chunks.add(pa.table({"n": [next(numbers) for _ in range(size)]}))
    drop = min(wanted, chunks.rows - 1)

    dropped = chunks.drop_oldest(drop) if drop else pa.table({"n": []})

    assert dropped["n"].to_pylist() == list(range(drop))
    assert concat(chunks.pieces)["n"].to_pylist() == list(range(drop, sum(sizes)))
    assert chunks.rows == sum(sizes) - drop


def _samples() -> list[bytes]:
    count = 300
    rows: dict[str, Any] = {
        "rank": [0] * count,
        "step": [None] * count,
        "phase": [f"phase-{number % 7}" for number in range(count)],
        "microbatch": [1] * count,
        "start_ns": [number * 1000 for number in range(count)],
        "duration_ns": [number**3 for number in range(count)],
        "waits": [True, None, False] * (count // 3),
    }
    files = [parquet_bytes(arrow_table("phases", rows))]
    for options in ({"compression": "none", "row_group_size": 37}, {"data_page_version": "2.0"}):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(rows), sink, store_schema=False, **options)
        files.append(bytes(sink.getvalue()))
    return files


def _damaged(file: bytes, dice: random.Random) -> bytes:
    """Cut off, flipped mostly in the footer, or spliced: what disks and networks do."""
    data, kind = bytearray(file), dice.random()
    if kind < 0.2:
        return bytes(data[: dice.randrange(len(data))])
    if kind < 0.9:
        first = max(0, len(data) - 1500) if dice.random() < 0.6 else 0
        for _ in range(dice.randrange(1, 4)):
            data[dice.randrange(first, len(data))] = dice.randrange(256)
        return bytes(data)
    at = dice.randrange(len(data))
    data[at : at + dice.randrange(100)] = dice.randbytes(dice.randrange(100))
    return bytes(data)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_are_refused_or_read_and_nothing_else(seed: int) -> None:
    dice, samples, refused = random.Random(seed), _samples(), 0
    for _ in range(400):
        try:
            assembled("phases", [decode("phases", _damaged(dice.choice(samples), dice))], 0)
        except FormatError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 200


@given(st.binary(max_size=200))
def test_random_bytes_are_no_parquet(data: bytes) -> None:
    with pytest.raises(FormatError, match="is not a complete Parquet file"):
        decode("steps", b"PAR1" + data + b"PAR1")


@pytest.mark.parametrize("room", [0, 3, 1000])
def test_pieces_are_gathered_whatever_room_was_expected(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.store.assemble.LEAST_ROWS", 2)
    whole: dict[str, list[Any]] = {
        "rank": [0, 0, 1, 1, 2], "step": [0, 1, 0, 1, 0], "phase": ["a", None, "b", "a", "c"],
        "microbatch": [3, None, 3, 4, 5], "start_ns": [1, 2, 3, 4, 5], "duration_ns": [9] * 5,
    }  # fmt: skip
    parts = [{name: column[at : at + 2] for name, column in whole.items()} for at in (0, 2, 4)]
    parts[0]["waits"] = [True, None]
    pieces = [decode("phases", parquet_bytes(arrow_table("phases", part))) for part in parts]
    read = assembled("phases", iter(pieces), room)
    for name in whole.keys() - {"microbatch"}:
        assert values(read, name) == whole[name]
    assert read.ints("microbatch").tolist() == [3, -1, 3, 4, 5]
    assert read.mask("waits").tolist() == [True, False, False, False, False]
