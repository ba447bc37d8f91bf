"""Compiles `operators.cpp` for one installation of torch, once, and finds it again.

C++ that uses torch fits exactly one build of torch, so it cannot be part of our wheel. It is
compiled where it is used (`stepscope run`, or `stepscope prepare` while an image is built), into a
cache. Without a compiler, operators are hooked in Python: just as correct, but 0.1 ms each.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE_VARIABLE = "STEPSCOPE_CACHE"
"""The folder for compiled libraries; default: `stepscope` in the user's cache folder."""
NATIVE_VARIABLE = "STEPSCOPE_NATIVE"
"""`0`: load and compile no library."""
FOLDER = Path(__file__).parent
SOURCE = FOLDER / "operators.cpp"
HEADERS = tuple(
    FOLDER / name for name in ("faults.hpp", "last_words.hpp", "recorder.hpp", "shared.hpp")
)

_COMPILERS = ("c++", "g++", "clang++")
_STANDARDS = ("-std=c++20", "-std=c++17")
"""New torch headers need the first; old compilers know only the second."""
_FLAGS = ("-O2", "-fPIC", "-shared", "-Wl,-z,defs")
_COMPILE_SECONDS = 600
_ASK_SECONDS = 60
_OLD_STRINGS = b"_ZN3c105ErrorC1ENS_14SourceLocationESs"
"""A function of torch with an old-ABI string argument; wheels before about 2.6 have it."""
_FIND_TORCH = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"


class BuildError(Exception):
    """Why there is no library, in one line."""


def is_wanted() -> bool:
    return os.environ.get(NATIVE_VARIABLE) != "0"


def library(torch_folder: Path) -> Path:
    """The path of the library for this installation of torch, whether or not it exists.

    Raises:
        OSError: torch or the home folder is missing.
    """
    version = (torch_folder / "version.py").read_bytes()
    sources = (one.read_bytes() for one in (SOURCE, *HEADERS))
    parts = (*sources, version, platform.machine().encode())
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    return _cache() / f"operators-{_number(version)}-{digest}.so"


def why_not() -> str | None:
    """Why no library can be compiled here, in a few words; None if one can."""
    if not is_wanted():
        return f"{NATIVE_VARIABLE} is 0"
    try:
        _compiler()
    except BuildError as error:
        return str(error)
    return None


def is_trusted(path: Path) -> bool:
    """Whether only this user and root can have written the file that we are about to load."""
    try:
        states = [path.stat(), path.parent.stat()]
    except OSError:
        return False
    return all(s.st_uid in (0, os.geteuid()) and not s.st_mode & 0o022 for s in states)


def torch_folder(python: str = sys.executable) -> Path | None:
    """Where an interpreter finds torch, without importing it: that would take seconds."""
    if python == sys.executable:
        spec = importlib.util.find_spec("torch")
        origin = spec.origin if spec is not None else None
    else:
        origin = _ask(python, _FIND_TORCH)
    return Path(origin).parent if origin else None


def build(torch: Path) -> Path:
    """Compiles the library unless it exists; waits if another process is compiling it.

    Raises:
        BuildError: there is no compiler, it failed (now or before), or the cache is not trusted.
    """
    try:
        path = library(torch)
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if not path.exists():
                _compile(torch, path)
    except OSError as error:
        raise BuildError(f"{error.filename or torch}: {error.strerror or error}") from error
    if not is_trusted(path):
        raise BuildError(f"other users may write to {path.parent}")
    return path


def _compile(torch: Path, path: Path) -> None:
    log = path.with_suffix(".log")
    if log.exists():
        raise BuildError(f"compiling failed before; delete {log} to try again")
    compiler = _compiler()
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made, said = Path(folder) / path.name, ""
        for standard in _STANDARDS:
            command = _command(compiler, standard, torch, made)
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False
            )
            if done.returncode == 0:
                made.chmod(0o755)
                made.replace(path)
                return
            said += f"$ {' '.join(command)}\n{done.stdout}{done.stderr}\n"
    log.write_text(said)
    raise BuildError(f"{compiler} failed; its output is in {log}")


def _command(compiler: str, standard: str, torch: Path, out: Path) -> list[str]:
    headers = torch / "include"
    libraries = torch / "lib"
    new_strings = _OLD_STRINGS not in (libraries / "libc10.so").read_bytes()
    return [
        compiler, *_FLAGS, standard, f"-D_GLIBCXX_USE_CXX11_ABI={int(new_strings)}",
        "-isystem", str(headers), "-isystem", str(headers / "torch/csrc/api/include"),
        str(SOURCE), "-o", str(out), f"-L{libraries}", "-ltorch_cpu", "-lc10",
    ]  # fmt: skip


def _compiler() -> str:
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else _COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    raise BuildError(f"there is no C++ compiler ({wanted or ', '.join(_COMPILERS)})")


def _cache() -> Path:
    ours = os.environ.get(CACHE_VARIABLE)
    if ours:
        return Path(ours)
    users = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(users) if users else Path.home() / ".cache") / "stepscope"
    except RuntimeError as error:
        raise OSError(0, str(error)) from error


def _number(version: bytes) -> str:
    found = re.search(rb"__version__ = '([^']+)'", version)
    return re.sub(r"[^A-Za-z0-9.]", "_", found[1].decode()) if found else "unknown"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _ask(python: str, question: str) -> str:
    try:
        done = subprocess.run(
            [python, "-c", question], capture_output=True, text=True, timeout=_ASK_SECONDS,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
