"""Feeds inputs to one parser in this process: `python -m tests.fuzz.feed TARGET [OPTION] [FOLDER]`.

Atheris, which libFuzzer guides by coverage; `python -m tests.fuzz` starts it.
"""

from __future__ import annotations

import random
import shlex
import sys

import atheris

from tests.fuzz.mutate import in_place, other_json

with atheris.instrument_imports(include=["stepscope", "tests.fuzz"]):
    from tests.fuzz.targets import TARGETS


def mutated(data: bytes, most_bytes: int, seed: int) -> bytes:
    """A third each: libFuzzer's changes, other bytes in place, and other values in JSON."""
    chance = random.Random(seed)
    way = chance.randrange(3) if data else 0
    changed = None
    if way == 1:
        changed = other_json(data, chance)
    if way == 2 or (way == 1 and changed is None):
        changed = in_place(data, chance)
    return changed[:most_bytes] if changed is not None else bytes(atheris.Mutate(data, most_bytes))


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
