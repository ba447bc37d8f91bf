"""Feeds mutated inputs to one parser: `python -m tests.fuzz job -max_total_time=6`.

It starts from the samples in `targets.py` and the inputs in `corpus/`. Options are libFuzzer's. An
input that makes a parser fail is written to the current folder: mend the parser, and add the input
to `test_fuzz.py`. With `--keep`, the inputs that reach most with the fewest bytes replace those in
`corpus/` afterwards; commit them. Without arguments it lists the parsers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS


def main() -> int:
    if len(sys.argv) < 2:
        print("\n".join(TARGETS))
        return 0
    name, *options = sys.argv[1:]
    if options == ["--events"]:  # as scanner.cpp wants them
        sys.stdout.buffer.write(TARGETS[name].samples()[0].partition(b'"traceEvents": [')[2])
        return 0
    rest = [option for option in options if option != "--keep"]
    with tempfile.TemporaryDirectory() as given, tempfile.TemporaryDirectory() as merged:
        corpus.unpack(name, Path(given))
        status = feed(name, *rest, given)
        if status == 0 and "--keep" in options:
            status = feed(name, "-set_cover_merge=1", merged, given)
            count = corpus.keep(name, (file.read_bytes() for file in Path(merged).iterdir()))
            print(f"kept {count} inputs")
    return status


def feed(name: str, *options: str) -> int:
    """In a process of its own: libFuzzer ends the one that it runs in."""
    command = [sys.executable, "-m", "tests.fuzz.feed", name, *options]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
