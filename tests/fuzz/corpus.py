"""The inputs that fuzzing starts from: samples made by code, and what earlier runs found worth
keeping, in one archive per target.

An archive is xz over tar, since inputs of one target resemble each other; times and owners in it
are zero, so that the same inputs are the same archive.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ARCHIVES = Path(__file__).parent / "corpus"
MOST_BYTES = 100_000
"""Of one archive. What does not fit is left out, beginning with the largest inputs."""


def kept(name: str) -> Iterator[bytes]:
    """The inputs in a target's archive."""
    archive = ARCHIVES / f"{name}.tar.xz"
    if not archive.exists():
        return
    with tarfile.open(archive) as file:
        for member in file:
            content = file.extractfile(member)
            assert content is not None, f"{archive}: {member.name} is not a plain file"
            yield content.read()


def keep(name: str, inputs: Iterable[bytes]) -> int:
    """Replaces a target's archive, which holds as many inputs as fit; their number."""
    ordered = sorted(set(inputs), key=lambda data: (len(data), data))
    packed = archived(ordered)
    while len(packed) > MOST_BYTES:
        ordered = ordered[: min(len(ordered) - 1, len(ordered) * MOST_BYTES // len(packed))]
        packed = archived(ordered)
    ARCHIVES.mkdir(exist_ok=True)
    (ARCHIVES / f"{name}.tar.xz").write_bytes(packed)
    return len(ordered)


def archived(inputs: Iterable[bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", format=tarfile.USTAR_FORMAT) as file:
        for number, data in enumerate(inputs):
            member = tarfile.TarInfo(f"{number:04}")
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def unpack(name: str, samples: Iterable[bytes], folder: Path) -> None:
    """Writes all inputs that a target starts from, as files for libFuzzer."""
    for number, data in enumerate([*samples, *kept(name)]):
        (folder / f"{number:04}").write_bytes(data)
