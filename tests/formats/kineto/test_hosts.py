"""Which host a rank ran on: PyTorch's traces seldom say so, but their names and devices do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.formats.kineto import read

from .traces import Event, gpu_events, trace, write

TIME = 1_760_012_632_049_358_000


def on_device(number: int) -> list[Event]:
    """What Kineto writes as the process of an activity on a device is the device's number."""
    return [one | {"pid": number} if one["cat"] in ("kernel", "gpu_memcpy") else one
            for one in gpu_events()]  # fmt: skip


def hosts(
    folder: Path, names: list[str], device: Callable[[int], int], seen: int
) -> dict[str, tuple[int, ...]]:
    for rank, name in enumerate(names):
        devices = [{"id": number} for number in range(seen)]
        content = trace(on_device(device(rank)), rank, len(names), deviceProperties=devices)
        write(folder / name, content)
    return {host.name: host.ranks for host in read(folder).window.job.hosts}


def by_handler(*hosts: str, first: int = 4711) -> list[str]:
    return [f"{host}_{first + at}.{TIME + at}.pt.trace.json" for at, host in enumerate(hosts)]


@pytest.mark.parametrize(("names", "expected"), [
    (by_handler("n1", "n1", "n2", "n2"), {"n1": (0, 1), "n2": (2, 3)}),
    (by_handler("gpu_7", "gpu_7", "gpu_7", "gpu_7"), {"gpu_7": (0, 1, 2, 3)}),
    (by_handler("worker", "worker", "worker", "worker", first=0), {}),
    ([*by_handler("n1", "n1", "n2", "n2")[:3], "other.json"], {}),
])  # fmt: skip
def test_the_handler_of_tensorboard_names_hosts(
    tmp_path: Path, names: list[str], expected: dict[str, tuple[int, ...]]
) -> None:
    """Not if its numbers enumerate ranks, or one file is called otherwise."""
    assert hosts(tmp_path, names, lambda rank: rank, 0) == expected


def test_two_ranks_that_use_one_device_are_not_on_one_host(tmp_path: Path) -> None:
    assert hosts(tmp_path, by_handler("job", "job"), lambda _: 0, 0) == {}


RANKS = [f"rank{rank}.json" for rank in range(4)]


@pytest.mark.parametrize(("device", "seen", "expected"), [
    (lambda rank: rank % 2, 2, {"host of ranks 0-1": (0, 1), "host of ranks 2-3": (2, 3)}),
    (lambda rank: rank // 2, 2, {}),
    (lambda _: 0, 1, {}),
    (lambda rank: rank, 8, {}),
])  # fmt: skip
def test_devices_show_which_ranks_share_a_host(
    tmp_path: Path, device: Callable[[int], int], seen: int, expected: dict[str, tuple[int, ...]]
) -> None:
    """Not if other ranks have a device's number, processes see one device each, or all of them fit
    on a host."""
    assert hosts(tmp_path, RANKS, device, seen) == expected
