"""Compiling the library for one torch: once, in a cache, and never in anybody's way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.collect.native import build


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    """What `build` reads of an installation."""
    folder = tmp_path / "torch"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "libc10.so").write_bytes(b"...")
    (folder / "version.py").write_text("__version__ = '9.8.7+cpu'\n")
    return folder


def compiler(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`$CXX`: a script that finds the output after `-o` in `$out`."""
    path = folder / "a-compiler"
    find = 'while [ "$1" != -o ]; do shift; done; out=$2\n'
    path.write_text(f'#!/bin/sh\necho "$@" >> {folder}/calls\n{find}{script}\n')
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_a_library_is_compiled_once(
    cache: Path, torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(tmp_path, 'echo library > "$out"', monkeypatch)

    path = build.build(torch)
    assert build.build(torch) == path == build.library(torch)

    assert path.read_text() == "library\n" and path.name.startswith("operators-9.8.7_cpu-")
    (call,) = calls(tmp_path)
    assert "-D_GLIBCXX_USE_CXX11_ABI=1" in call


def test_another_torch_needs_another_library(cache: Path, torch: Path) -> None:
    before = build.library(torch)
    (torch / "version.py").write_text("__version__ = '9.8.7+cpu'\ngit_version = 'another'\n")
    assert build.library(torch) != before


def test_a_torch_with_strings_of_the_old_kind(
    cache: Path, torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (torch / "lib" / "libc10.so").write_bytes(b"..._ZN3c105ErrorC1ENS_14SourceLocationESs...")
    compiler(tmp_path, 'echo library > "$out"', monkeypatch)
    build.build(torch)
    (call,) = calls(tmp_path)
    assert "-D_GLIBCXX_USE_CXX11_ABI=0" in call


def test_an_older_compiler_is_asked_for_an_older_language(
    cache: Path, torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = f'grep -q c++17 {tmp_path}/calls && echo library > "$out"'
    compiler(tmp_path, refuse, monkeypatch)
    assert build.build(torch).exists()
    assert len(calls(tmp_path)) == 2


def test_what_cannot_be_compiled_is_not_tried_again(
    cache: Path, torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(tmp_path, "echo no such header >&2; exit 1", monkeypatch)

    with pytest.raises(build.BuildError, match=r"a-compiler failed; its output is in .*\.log"):
        build.build(torch)
    (log,) = cache.glob("*.log")
    assert "no such header" in log.read_text()

    tried = len(calls(tmp_path))
    with pytest.raises(build.BuildError, match="failed before; delete"):
        build.build(torch)
    assert len(calls(tmp_path)) == tried


def test_no_compiler(cache: Path, torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(build.BuildError, match=r"no C\+\+ compiler \(c\+\+, g\+\+, clang\+\+\)"):
        build.build(torch)


def test_a_cache_that_cannot_be_written(
    torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.raises(build.BuildError, match="Not a directory"):
        build.build(torch)


def test_what_others_may_write_is_not_loaded(
    cache: Path, torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(tmp_path, 'echo library > "$out"', monkeypatch)
    path = build.build(torch)
    assert build.is_trusted(path)

    cache.chmod(0o777)
    assert not build.is_trusted(path)
    with pytest.raises(build.BuildError, match="other users may write to"):
        build.build(torch)
    assert not build.is_trusted(cache / "missing.so")


def test_two_at_once_compile_once(
    cache: Path, torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(tmp_path, 'sleep 0.5; echo library > "$out"', monkeypatch)
    ask = "import sys; from pathlib import Path; from stepscope.collect.native import build; "
    command = [sys.executable, "-c", ask + "build.build(Path(sys.argv[1]))", str(torch)]
    both = [subprocess.Popen(command, env=os.environ) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert len(calls(tmp_path)) == 1


def test_torch_is_found_without_being_imported(tmp_path: Path) -> None:
    here = build.torch_folder()
    assert here is not None and (here / "version.py").exists()
    assert build.torch_folder(str(tmp_path / "no-python")) is None
