"""Native programs of tests, compiled once for all of them and kept between runs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
HERE = Path(__file__).parent
ADDRESSES = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
THREADS = ("-fsanitize=thread",)
LIBRARY = ("-shared", "-fPIC")
_FLAGS = ("-std=c++17", "-O0", "-g1", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
_COMPILE_SECONDS = 120


def sources(*folders: str) -> list[Path]:
    """All of some folders of `native`."""
    return sorted(path for one in folders for path in (NATIVE / one).glob("*.cpp"))


def compiled(
    config: pytest.Config, name: str, sources: Sequence[Path], flags: Sequence[str] = ()
) -> Path:
    """A program or library; the test is skipped where nothing can be compiled, or not so."""
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    command = [compiler, *_FLAGS, *flags, f"-I{NATIVE}", "-x", "c++", "-", "-pthread", "-ldl"]
    folder = _cache(config) / _digest(command, sources)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        out = folder / name
        if not out.exists():
            _compile(command, _together(sources), out)
    return out


def _together(sources: Sequence[Path]) -> str:
    """One unit: the standard library is read once, which is most of the work."""
    return "".join(f'#include "{path}"\n' for path in sources)


def _compile(command: Sequence[str], source: str, out: Path) -> None:
    made = out.with_suffix(".new")
    done = subprocess.run(
        [*command, "-o", str(made)], input=source, capture_output=True, text=True,
        timeout=_COMPILE_SECONDS, check=False,
    )  # fmt: skip
    if "cannot find" in done.stderr and "san" in done.stderr:
        pytest.skip("this compiler has no sanitizers")
    assert done.returncode == 0, done.stderr
    made.replace(out)


def _cache(config: pytest.Config) -> Path:
    """Outside of pytest's temporary folders: those are new in each run."""
    cache = getattr(config, "cache", None)  # pytest runs without one on request
    assert cache is not None, "tests of native code keep what they compile in pytest's cache"
    return Path(cache.mkdir("native"))


def _digest(command: Sequence[str], sources: Sequence[Path]) -> str:
    """Of all that a program is made of; a header counts wherever it lies."""
    digest = hashlib.sha256("\0".join(command).encode())
    for path in _with_headers(sources):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _with_headers(sources: Iterable[Path]) -> list[Path]:
    folders = {path.parent for path in sources} | {NATIVE / "sender"}
    return sorted({*sources, *(path for one in folders for path in one.glob("*.hpp"))})
