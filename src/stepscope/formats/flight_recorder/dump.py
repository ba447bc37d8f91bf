"""Parses one rank's dump into entries, with the names that versions 2.1 to 2.10 use.

Coalesced operators are resolved here: the recorder writes every member, then one entry `coalesced`
whose state alone is updated. Sends and receives take their state from it; members of a coalesced
collective become one entry, because they share a sequence number.

All input is validated: a value of an unexpected type is treated as missing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from stepscope.errors import FormatError

MOST_ENTRIES = 1_000_000
"""Most entries of one rank. The ring buffer holds 2,000 by default; some set 20,000."""
MOST_FRAMES = 128
LONGEST_NAME = 300
"""Names and paths are truncated to this many characters."""
LARGEST_NUMEL = 1 << 48
LATEST_NS = 4 * 10**18
DTYPE_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "UInt16": 2, "Int": 4,
    "Float": 4, "UInt32": 4, "ComplexHalf": 4, "Long": 8, "Double": 8, "UInt64": 8,
    "ComplexFloat": 8, "ComplexDouble": 16, "QInt8": 1, "QUInt8": 1, "QInt32": 4,
}  # fmt: skip
"""Bytes by names of c10::ScalarType; Float8 variants take one byte."""
OPERATORS = (
    (r"barrier", "Barrier"),
    (r"reduce_?scatter", "ReduceScatter"),
    (r"all_?gather", "AllGather"),
    (r"all_?reduce", "AllReduce"),
    (r"all_?to_?all", "AllToAll"),
    (r"broadcast", "Broadcast"),
    (r"reduce", "Reduce"),
    (r"gather", "Gather"),
    (r"scatter", "Scatter"),
    (r"send", "Send"),
    (r"recv", "Recv"),
)
"""Patterns in recorded names of operators; longer ones first."""
COALESCED = "coalesced"
_NAME = re.compile(r"(?:(?P<backend>\w+):)?(?P<call>\S+)(?: (?P<a>\d+)(?:->|<-)(?P<b>\d+))?")


@dataclass(frozen=True, slots=True)
class Tensors:
    """Inputs or outputs of an operator: total elements, bytes if the type is known, shapes."""

    numel: int = 0
    bytes: int | None = 0
    dtype: str = ""
    shape: str = ""
    count: int = 0


NOTHING = Tensors()


@dataclass(frozen=True, slots=True)
class Entry:
    """One operator as recorded on its rank."""

    group: str
    desc: str
    seq: int
    p2p_seq: int
    record: int
    backend: str
    call: str
    op: str | None
    peer: int
    """Rank within the group, -1 if there is none."""
    given: Tensors
    taken: Tensors
    seen: str
    """`scheduled`, `started` or `completed`."""
    retired: bool
    created_ns: int
    timeout_ms: int
    is_p2p: bool
    op_id: int = 0
    """Counts all operators of the group on this rank, also those that are not recorded; 0 if
    unknown."""
    ended_ns: int = 0
    """When the watchdog noticed that it had ended; 0 if it did not."""
    batch: int = -1
    """`record` of the entry that ends its batch; -1 outside of batches."""


@dataclass(frozen=True)
class Dump:
    """One rank's dump. `rank` is set only if the dump itself contains it."""

    rank: int | None
    entries: tuple[Entry, ...]
    groups: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Description and global ranks by name, for groups whose ranks were recorded."""
    version: str = ""
    stack: str = ""
    """Stack of the newest call in the dump; JSON dumps have no stacks."""
    stack_ns: int = 0


def is_dump(data: Any) -> bool:
    """Whether plain data has the shape of a dump."""
    if not isinstance(data, dict):
        return False
    listed = isinstance(data.get("entries"), list)
    return (listed and not data["entries"]) or "pg_config" in data or (
        listed and isinstance(data["entries"][0], dict)
        and "profiling_name" in data["entries"][0])  # fmt: skip


def parse(data: Any) -> Dump:
    """Parses plain data into a dump.

    Raises:
        FormatError: this is not a dump.
    """
    if not is_dump(data):
        raise FormatError("not a Flight Recorder dump: it has neither entries nor pg_config")
    listed = data.get("entries")
    raw = listed if isinstance(listed, list | tuple) else ()
    if len(raw) > MOST_ENTRIES:
        raise FormatError(f"{len(raw)} entries, more than any recorder keeps")
    sizes: dict[object, Tensors] = {}
    entries = [_entry(one, at, sizes) for at, one in enumerate(raw) if isinstance(one, dict)]
    return Dump(
        rank=_rank(data),
        entries=tuple(_uncoalesced(entries)),
        groups=_groups(data.get("pg_config")),
        version=_text(data.get("version")),
        **_newest_stack(raw),
    )


def _rank(data: Mapping[str, Any]) -> int | None:
    rank = data.get("rank")
    return rank if type(rank) is int and 0 <= rank < 1 << 24 else None


def _entry(data: Mapping[str, Any], at: int, sizes: dict[object, Tensors]) -> Entry:
    backend, call, op, peer = named(_text(data.get("profiling_name")))
    group, desc = _group_of(data)
    p2p = data.get("is_p2p")
    return Entry(
        group=group, desc=desc,
        seq=_int(data.get("collective_seq_id", data.get("seq_id"))),
        p2p_seq=_int(data.get("p2p_seq_id")), record=_int(data.get("record_id"), at),
        backend=backend, call=call, op=op,
        peer=peer,
        given=_tensors(data.get("input_sizes"), data.get("input_dtypes"), sizes),
        taken=_tensors(data.get("output_sizes"), data.get("output_dtypes"), sizes),
        seen=_state(data), retired=data.get("retired") is True, created_ns=_created(data),
        timeout_ms=_int(data.get("timeout_ms")),
        is_p2p=p2p if isinstance(p2p, bool) else op in ("Send", "Recv"),
        op_id=_int(data.get("op_id")), ended_ns=_int(data.get("time_discovered_completed_ns")),
    )  # fmt: skip


@lru_cache(maxsize=4096)
def named(name: str) -> tuple[str, str, str | None, int]:
    """Splits `nccl:send 0->1` into library, call, operator and the peer within the group."""
    match = _NAME.match(name)
    if match is None:
        return "", "unknown", None, -1
    peer = int(match["b"]) if match["b"] and len(match["b"]) < 8 else -1
    return match["backend"] or "", match["call"], operator_of(match["call"]), peer


def operator_of(call: str) -> str | None:
    """The contract's operator for a recorded name; None if there is none."""
    lower = call.lower()
    return next((op for pattern, op in OPERATORS if re.search(pattern, lower)), None)


def _group_of(data: Mapping[str, Any]) -> tuple[str, str]:
    group = data.get("process_group", data.get("pg_name"))
    if isinstance(group, list | tuple) and group:
        return _text(group[0]), _text(group[1]) if len(group) > 1 else ""
    return _text(group) if group is not None else str(_int(data.get("pg_id"))), ""


def _state(data: Mapping[str, Any]) -> str:
    state = data.get("state")
    return state if state in ("scheduled", "started", "completed") else "scheduled"


def _created(data: Mapping[str, Any]) -> int:
    time = _int(data.get("time_created_ns"), _int(data.get("time_created_us")) * 1000)
    return time if 0 <= time < LATEST_NS else 0


def _tensors(sizes: Any, dtypes: Any, cache: dict[object, Tensors]) -> Tensors:
    """Sums over the tensors. `cache` keeps results for shared lists and repeated sizes."""
    if not isinstance(sizes, list | tuple) or not sizes:
        return NOTHING
    key = (id(sizes), id(dtypes)) if len(sizes) > 1 else (_content(sizes[0]), _content(dtypes))
    known = cache.get(key)
    if known is None:
        known = cache[key] = _summed(sizes, dtypes)
    return known


def _content(value: Any) -> object:
    """A cache key: the contents of a short list of numbers or names, else its identity."""
    plain = isinstance(value, list | tuple) and len(value) < 8 and all(
        type(one) in (int, str) for one in value)  # fmt: skip
    return tuple(value) if plain else id(value)


def _summed(sizes: Any, dtypes: Any) -> Tensors:
    numel, count = _numel(sizes)
    listed = dtypes[:MOST_FRAMES] if isinstance(dtypes, list | tuple) else ()
    names = sorted({name for name in map(_text, listed) if name})
    width = _width(names[0]) if len(names) == 1 else None
    total = None if width is None or numel < 0 else numel * width
    return Tensors(numel, total, "+".join(names), _shape(sizes), count)


def _numel(sizes: Iterable[Any]) -> tuple[int, int]:
    """Total elements (-1: unknown) and the number of tensors."""
    total = count = 0
    for shape in sizes:
        if not isinstance(shape, list | tuple) or len(shape) > 64:
            return -1, count
        if not all(type(dim) is int and 0 <= dim <= LARGEST_NUMEL for dim in shape):
            return -1, count
        total += math.prod(shape)
        count += 1
    return (total if total <= LARGEST_NUMEL else -1), count


def _shape(sizes: Any) -> str:
    """Shapes as text: `[4, 8]`; for many tensors `12 x [4]` or the first few."""
    shown = [_one_shape(shape) for shape in sizes[:4]]
    if len(sizes) > 1 and len(set(shown)) == 1 and all(one == sizes[0] for one in sizes[:4]):
        return f"{len(sizes)} x {shown[0]}"
    return ", ".join(shown) + (", ..." if len(sizes) > 4 else "")


def _one_shape(shape: Any) -> str:
    if not isinstance(shape, list | tuple):
        return "?"
    dims = [str(dim) if type(dim) is int and abs(dim) <= LARGEST_NUMEL else "?"
            for dim in shape[:8]]  # fmt: skip
    return f"[{', '.join(dims)}]"


def _width(dtype: str) -> int | None:
    return 1 if dtype.startswith("Float8") else DTYPE_BYTES.get(dtype)


def _text(value: Any) -> str:
    return value[:LONGEST_NAME] if isinstance(value, str) else ""


def _int(value: Any, otherwise: int = 0) -> int:
    return value if type(value) is int and abs(value) < LATEST_NS else otherwise


def _groups(config: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Groups with known members. Gloo before 2.14 leaves names and members empty."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for key, one in config.items() if isinstance(config, dict) else ():
        ranks = _members(one.get("ranks")) if isinstance(one, dict) else ()
        if ranks:
            found[_text(one.get("name")) or _text(key)] = _text(one.get("desc")), ranks
    return found


def _members(ranks: Any) -> tuple[int, ...]:
    """Parses members, which are written as `"[0, 1]"`, also in pickles."""
    if isinstance(ranks, str):
        numbers = [int(word) for word in re.findall(r"\d{1,8}", ranks[: 10 * MOST_ENTRIES])]
    else:
        listed = ranks if isinstance(ranks, list | tuple) else ()
        numbers = [rank for rank in listed if type(rank) is int and 0 <= rank < 10**8]
    return tuple(dict.fromkeys(numbers))


def _uncoalesced(entries: list[Entry]) -> list[Entry]:
    """Gives point-to-point operators the state of their batch; merges coalesced collectives."""
    out: list[Entry | None] = list(entries)
    batches: dict[tuple[str, bool], list[int]] = {}
    newest: dict[str, int] = {}
    for at, entry in enumerate(entries):
        p2p = entry.is_p2p or _ends_sends(entries, newest.get(entry.group), entry)
        batch = batches.setdefault((entry.group, p2p), [])
        if batch and not _same_batch(entries[batch[-1]], entry, p2p):
            batch.clear()
        newest[entry.group] = at
        if p2p and entry.call == COALESCED:
            _settle(out, batch, entry)
            out[at] = None
            batch.clear()
            continue
        batch.append(at)
        if not p2p and len(batch) > 1:
            out[batch[-2]] = None
            out[at] = _joined([entries[one] for one in batch])
    return [entry for entry in out if entry is not None]


def _ends_sends(entries: list[Entry], before: int | None, entry: Entry) -> bool:
    """Whether this entry ends a batch of sends; early versions do not mark it as `is_p2p`."""
    if before is None or entry.call != COALESCED:
        return False
    last = entries[before]
    settled = last.retired or last.seen != "scheduled"
    return last.is_p2p and not settled and last.p2p_seq == entry.p2p_seq


def _same_batch(last: Entry, entry: Entry, p2p: bool) -> bool:
    if p2p:
        return last.p2p_seq == entry.p2p_seq
    return last.seq == entry.seq and last.seq > 0


def _settle(out: list[Entry | None], batch: list[int], end: Entry) -> None:
    for at in batch:
        entry = out[at]
        if entry is not None:
            out[at] = replace(entry, seen=end.seen, retired=end.retired,
                              ended_ns=end.ended_ns, batch=end.record)  # fmt: skip


def _joined(batch: list[Entry]) -> Entry:
    """A coalesced collective as one entry, with the last state and the sum of sizes."""
    last = batch[-1]
    members = [entry for entry in batch if entry.call != COALESCED]
    calls = Counter(entry.call for entry in members)
    ops = {entry.op for entry in members}
    names = ", ".join(f"{call} x{count}" for call, count in calls.most_common(4))
    return replace(
        last, op=ops.pop() if len(ops) == 1 else None, call=f"{COALESCED}({names})",
        given=_sum([entry.given for entry in members]),
        taken=_sum([entry.taken for entry in members]),
        created_ns=batch[0].created_ns,
    )  # fmt: skip


def _sum(parts: list[Tensors]) -> Tensors:
    numel = sum(part.numel for part in parts) if all(part.numel >= 0 for part in parts) else -1
    known = [part.bytes for part in parts if part.bytes is not None]
    dtypes = sorted({part.dtype for part in parts if part.dtype})
    shape = ", ".join(list(dict.fromkeys(part.shape for part in parts))[:4])
    total = sum(known) if len(known) == len(parts) else None
    return Tensors(numel, total, "+".join(dtypes), shape, sum(part.count for part in parts))


def _newest_stack(raw: Sequence[Any]) -> dict[str, Any]:
    for one in reversed(raw):
        stack = stack_of(one.get("frames")) if isinstance(one, dict) else ""
        if stack:
            return {"stack": stack, "stack_ns": _created(one)}
    return {}


def stack_of(frames: Any) -> str:
    """Converts dumped frames, innermost first, to the column `frames`, outermost first."""
    if not isinstance(frames, list | tuple):
        return ""
    written = [_frame(frame) for frame in frames[:MOST_FRAMES] if isinstance(frame, dict)]
    return ";".join(reversed(written))


def _frame(frame: Mapping[str, Any]) -> str:
    place = f"{_text(frame.get('filename'))}:{_int(frame.get('line'))}"
    return f"{_text(frame.get('name')) or '?'} ({place})".replace(";", ",").replace("\n", " ")
