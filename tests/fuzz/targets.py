"""Everything that parses bytes of others, one function each, with what it may raise."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import FormatError, SourceError, StepscopeError, WireError
from stepscope.processor.state.host_state import HostState
from stepscope.store.bounds import within
from stepscope.store.decode import approximate_rows, decode
from stepscope.store.merged import claims_in, counting_rows, shares
from stepscope.store.merging import merge, piece_in
from stepscope.trace import TABLES
from stepscope.trace.parsing import parse_job
from stepscope.wire import control
from stepscope.wire.frames import decode_hello, decode_names
from tests.fuzz import samples

_NOW_NS = 1_766_000_000_000_000_000


@dataclass(frozen=True)
class Target:
    """A parser, and small inputs that it accepts."""

    parse: Callable[[bytes], object]
    samples: Callable[[], Sequence[bytes]]


def _file(data: bytes, name: str) -> Path:
    """The bytes as a file in memory, since readers of formats take paths."""
    folder = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
    path = folder / f"stepscope-fuzz-{os.getpid()}-{name}"
    path.write_bytes(data)
    return path


def job(data: bytes) -> None:
    """`job.json` and fragments."""
    with contextlib.suppress(FormatError):
        parse_job(data).to_json()


def parquet(data: bytes) -> None:
    """A table; the first byte says which, and from 128 on that it is a merged file."""
    first, file = (data[0], data[1:]) if data else (0, b"")
    table = list(TABLES)[first % 128 % len(TABLES)]
    approximate_rows(file)
    with contextlib.suppress(FormatError):
        if first < 128:
            within(decode(table, file))
        else:
            piece_in(f"{table}/{samples.MERGED}", file)


def claims(data: bytes) -> None:
    """What the metadata of a merged file says, and merging it with a small one."""
    small, path = "steps/recorder=a/0.parquet", f"steps/{samples.MERGED}"
    with contextlib.suppress(FormatError):
        file = samples.merged_file(data)
        found = claims_in(file)
        for share in shares([small, path, *found.rows], {path: found}).values():
            counting_rows("steps", path, file, share)
        pieces = [piece_in(path, file), piece_in(small, samples.small_file())]
        merge("steps", [one for one in pieces if one is not None])


def packets(data: bytes) -> None:
    """Packets of one connection, each with its length in front."""
    state = HostState()
    while data:
        length, data = int.from_bytes(data[:2], "little"), data[2:]
        state.packet(5, data[:length], _NOW_NS)
        data = data[length:]
    state.tick(_NOW_NS)
    state.disconnected(5)


def requests(data: bytes) -> None:
    """Requests and replies, and what ranks say first."""
    view = memoryview(data)
    for read in (control.decode_flush, control.decode_follow, control.decode_events,
                 control.decode_counters, control.decode_parent, control.decode_leaving,
                 control.decode_exited):  # fmt: skip
        read(view)
    for answer in (control.decode_relayed, control.decode_counted, control.decode_flushed,
                   control.decode_notes, decode_hello, decode_names):  # fmt: skip
        with contextlib.suppress(WireError):
            answer(view)
    with contextlib.suppress(WireError):
        control.decode_hurry(data)
        control.decode_losses_stored(data)


def dump(data: bytes) -> None:
    """A dump of the Flight Recorder: pickle or JSON, also compressed, and what it becomes."""
    from stepscope.formats import flight_recorder

    path = _file(data, "rank_0")
    try:
        with contextlib.suppress(SourceError):
            flight_recorder.read(path)
    finally:
        path.unlink()


def kineto(data: bytes) -> None:
    """A trace of torch.profiler, also compressed."""
    from stepscope.formats import kineto as reader

    path = _file(data, "rank0.pt.trace.json")
    try:
        with contextlib.suppress(SourceError):
            reader.read(path, workers=1)
    finally:
        path.unlink()


def perfetto(data: bytes) -> None:
    """A Perfetto trace as stepscope writes it, also compressed. Most inputs do not begin as our
    files do, so that they get such a beginning."""
    from stepscope.formats import perfetto as reader
    from stepscope.perfetto.packets import clock_packet

    zipped = data[:2] == b"\x1f\x8b"
    path = _file(data if zipped else clock_packet() + data, "0.perfetto-trace")
    try:
        with contextlib.suppress(SourceError):
            reader.read(path)
    finally:
        path.unlink()


def topology(data: bytes) -> None:
    """Slurm's topology.conf or topology.yaml."""
    from stepscope.formats.topology import reader

    path = _file(data, "topology.conf")
    try:
        with contextlib.suppress(SourceError):
            reader.read(path)
    finally:
        path.unlink()


def results(data: bytes) -> None:
    """Results of an evaluation, and what `--baseline` compares with."""
    from stepscope.evaluate import results as stored

    path = _file(data, "results.json")
    try:
        with contextlib.suppress(StepscopeError):
            stored.read(path)
    finally:
        path.unlink()


def scenario(data: bytes) -> None:
    """A scenario of `stepscope simulate`."""
    from stepscope.simulate.parse import parse_scenario

    with contextlib.suppress(StepscopeError, UnicodeDecodeError):
        parse_scenario(data.decode())


def devices(data: bytes) -> None:
    """The evidence of a job about its devices, and what follows from it."""
    from stepscope.devices import standings
    from stepscope.devices.record import from_bytes, to_bytes
    from stepscope.devices.text import render, to_json

    with contextlib.suppress(FormatError):
        one = from_bytes(data)
        found = standings([one, from_bytes(to_bytes(one))], _NOW_NS)
        render(found, 2, _NOW_NS, 80, 10).encode()
        to_json(found, 2, _NOW_NS, ())


TARGETS: Mapping[str, Target] = {
    "job": Target(job, lambda: [samples.a_job()]),
    "parquet": Target(parquet, samples.tables),
    "claims": Target(claims, lambda: samples.CLAIMS),
    "packets": Target(packets, samples.connections),
    "requests": Target(requests, samples.requests),
    "dump": Target(dump, samples.dumps),
    "kineto": Target(kineto, samples.kineto_traces),
    "perfetto": Target(perfetto, samples.perfetto_traces),
    "topology": Target(topology, lambda: samples.TOPOLOGIES),
    "results": Target(results, samples.results),
    "scenario": Target(scenario, lambda: samples.SCENARIOS),
    "devices": Target(devices, samples.evidence),
}
