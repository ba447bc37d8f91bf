"""Orders in a job's folder, read and written by a thread: a real folder, and whatever is in it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.processor.profiling.board import KEPT_SECONDS, Board, Place
from stepscope.store.location import Location
from stepscope.wire.profiling import ProfileOrder, decode_order, encode_order, order_name

from .daemons import wait_for

ORDER = ProfileOrder("w-host-0", 100, 119, (), 20.0, "degradation", 5_000)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    board = Board("host-0")
    board.watch({"job": Place(Location.parse(str(tmp_path)), 0.02)})
    yield board
    board.close()


def put(folder: Path, order: ProfileOrder) -> Path:
    path = folder / order_name(order.window)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_order(order))
    return path


def first(board: Board) -> list[ProfileOrder]:
    """The first orders that it reports."""
    found: list[ProfileOrder] = []

    def some() -> bool:
        found.extend(order for listed in board.listed() for order in listed.new)
        return bool(found)

    wait_for(some, "orders")
    return found


def test_what_one_processor_writes_another_reads(board: Board, tmp_path: Path) -> None:
    other = Board("host-1")
    other.watch({"job": Place(Location.parse(str(tmp_path)), 0.02)})
    try:
        board.write(Location.parse(str(tmp_path)), ORDER)
        assert first(board) == first(other) == [ORDER]
        time.sleep(0.1)
        assert all(listed.new == () for listed in board.listed()), "once"
    finally:
        other.close()


def test_whatever_else_is_there_is_skipped(
    board: Board, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    control = tmp_path / "control"
    control.mkdir()
    (control / "profile-x.json").write_bytes(b"\x00garbage")
    (control / "notes.txt").write_text("see me")
    (control / "profile-big.json").write_bytes(b" " * (2 << 20))
    (control / "folder").mkdir()
    (control / "profile-of-another-name.json").write_bytes(encode_order(ORDER))
    time.sleep(0.3)
    wanted = ProfileOrder("w2", 100, 119, (), 20.0, "user", 5_000)
    put(tmp_path, wanted)
    assert first(board) == [wanted]
    skipped = [record for record in caplog.records if "is skipped" in record.message]
    assert {record.message.split(" is ")[0].rpartition("/")[2] for record in skipped} == {
        "profile-x.json", "notes.txt", "profile-big.json", "profile-of-another-name.json"
    }  # fmt: skip


def test_a_store_that_is_gone_is_said_once(
    board: Board, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "control").write_text("a file where a folder should be")
    board.write(Location.parse(str(tmp_path)), ORDER)
    wait_for(lambda: "no synchronized profile" in caplog.text, "warning")
    time.sleep(0.2)
    assert caplog.text.count("orders to profile are not read") <= 1
    (tmp_path / "control").unlink()
    shutil.rmtree(tmp_path / "control", ignore_errors=True)
    put(tmp_path, ORDER)
    assert first(board) == [ORDER]


def test_old_orders_of_this_host_are_deleted(board: Board, tmp_path: Path) -> None:
    ours = put(tmp_path, ProfileOrder("a-host-0", 1, 2, (), 20.0, "stall", 5_000))
    theirs = put(tmp_path, ProfileOrder("a-host-1", 1, 2, (), 20.0, "stall", 5_000))
    for path in (ours, theirs):
        os.utime(path, (time.time() - KEPT_SECONDS - 60,) * 2)
    board.write(Location.parse(str(tmp_path)), ORDER)
    wait_for(lambda: not ours.exists(), "deletion")
    assert theirs.exists()
    assert decode_order((tmp_path / order_name(ORDER.window)).read_bytes()) == ORDER


def test_jobs_that_have_ended_are_not_looked_at(board: Board, tmp_path: Path) -> None:
    board.watch({})
    time.sleep(0.1)
    board.listed()
    put(tmp_path, ORDER)
    time.sleep(0.1)
    assert board.listed() == []
