"""Feeds inputs to one parser in this process: `python -m tests.fuzz.feed TARGET [OPTION] [FOLDER]`.

Atheris, which libFuzzer guides by coverage; `python -m tests.fuzz` starts it.
"""

from __future__ import annotations

import random
import shlex
import sys

import atheris

with atheris.instrument_imports(include=["stepscope", "tests.fuzz"]):
    from tests.fuzz.targets import TARGETS


MOST_CHANGES = 4


def mutated(data: bytes, most_bytes: int, seed: int) -> bytes:
    """Every second input keeps its length: an insertion makes a file with offsets in it unreadable,
    and what lies behind the check of that would never be reached."""
    chance = random.Random(seed)
    if not data or chance.random() < 0.5:
        return bytes(atheris.Mutate(data, most_bytes))
    changed = bytearray(data)
    for _ in range(1 + chance.randrange(MOST_CHANGES)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def main() -> None:
    name, *options = sys.argv[1:]
    target = TARGETS[name]
    with atheris.instrument_imports(include=["stepscope"]):
        for sample in target.samples():
            target.parse(sample)  # imports the parser
    # to merge, libFuzzer starts itself again by this text, which a shell reads
    command = f"{shlex.quote(sys.executable)} -m tests.fuzz.feed {name}"
    atheris.Setup([command, *options], target.parse, custom_mutator=mutated)
    atheris.Fuzz()


main()
