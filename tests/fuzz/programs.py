"""C++ that parses bytes of others, as programs with address and undefined behaviour sanitizers.

Where clang has libFuzzer (on Debian, packages `clang` and `libclang-rt-14-dev`), it guides them by
coverage. Else `driver.cpp` takes its place, whose changes are random.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.wire.control import encode_losses_stored
from tests.fuzz import samples

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"
FLAGS = ("-std=c++17", "-O1", "-g", "-fno-sanitize-recover=all", "-I", str(NATIVE / "src"))
NOTHING = 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }'


@dataclass(frozen=True)
class Program:
    """What it is linked from, below `native/`, and small inputs that it accepts."""

    sources: Sequence[str]
    samples: Callable[[], Sequence[bytes]]


def traces() -> list[bytes]:
    """Events of traces, cut into pieces of 256 bytes and of one."""
    found = [
        one.partition(b'"traceEvents": [')[2]
        for one in samples.kineto_traces() if one.startswith(b"{")
    ]  # fmt: skip
    return [sizes + events for events in found for sizes in (b"\xff\x3f", b"\x00\x07")]


def heard() -> list[bytes]:
    """A rank of torchrun under a launcher, one of Slurm, the largest number, and records."""
    variables = (
        (b"1", b"4", b"1", b"", b"0", b"j", b"/store", b"h", b"/socket", b"7", b""),
        (b"", b"", b"", b"3", b"", b"", b"s3://b/j", b"3\xc3\xa9\xf0\x9f\x9a\x80"),
        (b"2147483647", b"2147483647", b"2147483647"),
    )
    requests = [json.dumps({"watch": "j", "nccl_events": 65536}).encode(), encode_losses_stored()]
    words = [b"python3", b"-X", b"dev", b"-m", b"torch.distributed.run", b"train.py"]
    return [*(b"\0".join([*some, *words]) for some in variables), *requests, samples.records()]


PROGRAMS: Mapping[str, Program] = {
    "scanner": Program(("src/*.cpp",), traces),
    "sender": Program(
        ("src/records.cpp", "cupti/selection.cpp", "sender/connection.cpp", "sender/descriptor.cpp",
         "sender/identity.cpp", "sender/names.cpp", "sender/text.cpp"), heard,
    ),
}  # fmt: skip


def build(name: str, folder: Path) -> Path:
    """Compiles the program into that folder."""
    program = folder / name
    linked = [str(file) for one in PROGRAMS[name].sources for file in sorted(NATIVE.glob(one))]
    command = [*compiler(), *FLAGS, "-o", str(program), str(HERE / f"{name}.cpp"), *linked]
    subprocess.run(command, check=True)
    return program


@functools.cache
def compiler() -> Sequence[str]:
    """With libFuzzer, or with our own loop."""
    clang = shutil.which("clang++")
    if clang and has_libfuzzer(clang):
        return (clang, "-fsanitize=fuzzer,address,undefined")
    print("no clang with libFuzzer: changes are random", file=sys.stderr)
    return (os.environ.get("CXX", "c++"), "-fsanitize=address,undefined", str(HERE / "driver.cpp"))


def has_libfuzzer(clang: str) -> bool:
    """Whether it can link with it, which a clang without its runtime libraries cannot."""
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(
            [clang, "-fsanitize=fuzzer,address,undefined", "-x", "c++", "-",
             "-o", f"{folder}/nothing"],
            input=NOTHING.encode(), stderr=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    return made.returncode == 0
