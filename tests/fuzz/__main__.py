"""Feeds mutated inputs to one parser: `python -m tests.fuzz job -max_total_time=6`.

It starts from the samples in `targets.py` or `programs.py` and the inputs in `corpus/`. Options are
libFuzzer's. An input that makes a parser fail is written to the current folder: mend the parser,
and add the input to `test_fuzz.py`. With `--keep`, the inputs that reach most with the fewest bytes
replace those in `corpus/` afterwards; commit them. Without arguments it lists the parsers.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz import corpus, programs
from tests.fuzz.ended import ended
from tests.fuzz.programs import PROGRAMS
from tests.fuzz.targets import TARGETS


def main() -> int:
    if len(sys.argv) < 2:
        print("\n".join([*TARGETS, *PROGRAMS]))
        return 0
    name, *options = sys.argv[1:]
    if name in TARGETS:
        command = [sys.executable, "-m", "tests.fuzz.feed", name]
        return fed(name, command, TARGETS[name].samples(), options)
    with tempfile.TemporaryDirectory() as folder:
        program = programs.build(name, Path(folder))
        return fed(name, [str(program)], PROGRAMS[name].samples(), options)


def fed(name: str, command: Sequence[str], samples: Sequence[bytes], options: Sequence[str]) -> int:
    """In a process of its own, which libFuzzer ends; then keeps inputs, if asked to."""
    rest = [option for option in options if option != "--keep"]
    with tempfile.TemporaryDirectory() as given, tempfile.TemporaryDirectory() as merged:
        corpus.unpack(name, samples, Path(given))
        status = ended([*command, *rest, given])
        if status == 0 and "--keep" in options:
            status = ended([*command, "-set_cover_merge=1", merged, given])
            if status == 0:
                count = corpus.keep(name, (one.read_bytes() for one in Path(merged).iterdir()))
                print(f"kept {count} inputs")
    return status


if __name__ == "__main__":
    sys.exit(main())
