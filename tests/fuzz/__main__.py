"""Feeds mutated inputs to one parser: `python -m tests.fuzz job -max_total_time=6`.

With Atheris, which libFuzzer guides by coverage; options are libFuzzer's. An input that makes a
parser fail is written to the current folder: mend the parser, and add the input to `test_fuzz.py`.
Without arguments it lists the parsers.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["stepscope", "tests.fuzz"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    if len(sys.argv) < 2:
        print("\n".join(TARGETS))
        return
    name, *options = sys.argv[1:]
    target = TARGETS[name]
    if options == ["--events"]:  # as scanner.cpp wants them
        sys.stdout.buffer.write(target.sample().partition(b'"traceEvents": [')[2])
        return
    with atheris.instrument_imports(include=["stepscope"]):
        target.parse(target.sample())  # imports the parser
    with tempfile.TemporaryDirectory() as corpus:
        (Path(corpus) / "sample").write_bytes(target.sample())
        atheris.Setup([sys.argv[0], *options, corpus], target.parse)
        atheris.Fuzz()


main()
