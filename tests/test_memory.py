"""What a process that looks once does with memory it freed."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys

import pytest

from stepscope.memory import cycles_kept

FREES = """
from stepscope.memory import keep_freed_memory
{call}
import os
import numpy as np

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

before = resident()
block = np.ones(8 << 20)
del block
print((resident() - before) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library decides")
@pytest.mark.parametrize(("call", "keeps"), [("keep_freed_memory()", True), ("", False)])
def test_a_freed_block_is_kept_for_the_next(call: str, keeps: bool) -> None:
    program = FREES.format(call=call)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (int(run.stdout) >= 60) == keeps


PIECES = """
from stepscope.memory import return_freed_memory, return_freed_memory_here
{call}
import os
import numpy as np

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

before = resident()
block = np.ones(3 << 20)
del block
pieces = []
for _ in range(20):
    block = np.ones(1 << 18)
    pieces.append(np.ones(16))
    del block
    block = [np.ones(1 << 17) for _ in range(4)]
    pieces.append(np.ones(16))
    del block
print((resident() - before) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library decides")
def test_a_process_that_runs_for_long_returns_large_blocks() -> None:
    def kept(call: str) -> int:
        program = PIECES.format(call=call)
        run = [sys.executable, "-c", program]
        return int(subprocess.run(run, capture_output=True, text=True, check=True).stdout)

    assert kept("return_freed_memory()") <= 1
    assert kept("return_freed_memory_here()") <= 1
    assert kept("") > 1


def test_what_a_job_is_started_from_sets_nothing_for_it() -> None:
    """Arrow's pool is chosen in this process; a variable would be inherited by the training."""
    program = """
import os
from stepscope.memory import return_freed_memory_here
before = dict(os.environ)
return_freed_memory_here()
import pyarrow
print(pyarrow.default_memory_pool().backend_name, dict(os.environ) == before)
"""
    run = [sys.executable, "-c", program]
    said = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["system", "True"]


HOLES = """
import os
import numpy as np
from stepscope.memory import release_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

release_freed_memory()
before = resident()
blocks = [np.ones(1 << 13) for _ in range(1000)]
pinned = np.ones(1 << 13)
del blocks
held = resident() - before
release_freed_memory()
print(held >> 20, (resident() - before) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library decides")
def test_free_memory_below_what_is_in_use_is_released() -> None:
    run = [sys.executable, "-c", HOLES]
    held, left = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    assert int(held) >= 50
    assert int(left) <= 2


def test_cycles_are_looked_for_again_afterwards() -> None:
    with pytest.raises(KeyError), cycles_kept():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()


def test_a_disabled_collector_stays_disabled() -> None:
    gc.disable()
    try:
        with cycles_kept():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
