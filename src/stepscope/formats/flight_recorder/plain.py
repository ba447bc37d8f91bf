"""An unpickler for plain data only.

Python's own unpickler, even when restricted, can be made to exhaust memory with a few bytes (a memo
index of two billion, an array of a terabyte) or to hash nested tuples for years. So we interpret
the opcodes ourselves: those for numbers, text, lists, tuples, dicts and the memo. Opcodes that name
a class, call something or set state are refused. Shared objects stay shared; nothing recurses.

    opcode  1 byte, then its argument: a number of 1, 2, 4 or 8 bytes, a line of text, or a length
            and that many bytes. Lengths are checked against the file before they are used.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any

from stepscope.errors import FormatError

MOST_STEPS = 20_000_000
"""Most opcodes: a full ring of 20,000 entries with 50 frames each takes 5 million."""
LONGEST_INT = 32
"""Most bytes of an integer; torch writes 64-bit ones."""
LONGEST_LINE = 4096
"""Most bytes of a text argument (protocol 0)."""
LARGEST_KEY = 1 << 32
"""Larger integers could be chosen to collide in hashes; text cannot."""

Op = Callable[["_Machine"], None]


def loads(data: bytes) -> Any:
    """Unpickles plain data.

    Raises:
        FormatError: damaged, truncated, too large, or more than plain data.
    """
    machine = _Machine(data)
    try:
        return machine.run()
    except (IndexError, KeyError, ValueError, TypeError, AttributeError, struct.error) as error:
        raise FormatError(f"damaged pickle at byte {machine.at}") from error


class _Machine:
    __slots__ = ("at", "data", "marks", "memo", "stack")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Runs all opcodes.

        The most frequent ones are inlined: 0.25 µs per opcode instead of 1.0, and a dump of 2,000
        entries has 200,000.
        """
        data, stack, memo, marks = self.data, self.stack, self.memo, self.marks
        push, operations = stack.append, _OPERATIONS
        at, steps = 0, 0
        while at < len(data) and steps < MOST_STEPS:
            code = data[at]
            at += 1
            steps += 1
            if code == _BINGET:
                push(memo[data[at]])
                at += 1
            elif code == _LONG_BINGET and at + 4 <= len(data):
                push(memo[int.from_bytes(data[at : at + 4], "little")])
                at += 4
            elif code == _LONG_BINPUT and at + 4 <= len(data):
                memo[int.from_bytes(data[at : at + 4], "little")] = stack[-1]
                at += 4
            elif code == _BINPUT:
                memo[data[at]] = stack[-1]
                at += 1
            elif code == _BININT1:
                push(data[at])
                at += 1
            elif code == _MARK:
                marks.append(len(stack))
            elif code == _EMPTY_LIST:
                push([])
            elif code == _STOP:
                return stack[-1]
            else:
                self.at = at
                operation = operations.get(code)
                if operation is None and code in _INLINED:
                    raise FormatError("pickle is cut off")
                if operation is None:
                    raise FormatError(f"pickle contains more than plain data ({_name(code)})")
                operation(self)
                at = self.at
        raise FormatError("pickle without an end" if steps < MOST_STEPS else "pickle is too long")

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise FormatError("pickle is cut off")
        chunk = self.data[self.at : end]
        self.at = end
        return chunk

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def line(self) -> str:
        end = self.data.index(b"\n", self.at, self.at + LONGEST_LINE)
        text = self.data[self.at : end]
        self.at = end + 1
        return text.decode("ascii")

    def since_mark(self) -> list[Any]:
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items


def _name(code: int) -> str:
    names = {getattr(pickle, n)[0]: n for n in pickle.__all__
             if n.isupper() and isinstance(getattr(pickle, n), bytes)}  # fmt: skip
    return names.get(code, f"opcode {code:#04x}")


def _push(value: Callable[[_Machine], Any]) -> Op:
    def operation(machine: _Machine) -> None:
        machine.stack.append(value(machine))

    return operation


def _text(size: int) -> Op:
    def operation(machine: _Machine) -> None:
        chunk = machine.take(machine.number(size))
        machine.stack.append(chunk.decode("utf-8", "surrogatepass"))

    return operation


def _long(size: int) -> Op:
    def operation(machine: _Machine) -> None:
        length = machine.number(size)
        if length > LONGEST_INT:
            raise FormatError("pickle has an integer that is too large for a dump")
        machine.stack.append(int.from_bytes(machine.take(length), "little", signed=True))

    return operation


def _decimal(machine: _Machine) -> Any:
    line = machine.line().removesuffix("L")
    if line in ("00", "01"):
        return line == "01"
    if len(line) > 2 * LONGEST_INT:
        raise FormatError("pickle has an integer that is too large for a dump")
    return int(line)


def _tuple(size: int) -> Op:
    def operation(machine: _Machine) -> None:
        items = machine.stack[-size:]
        if len(items) < size:
            raise IndexError
        machine.stack[-size:] = [tuple(items)]

    return operation


def _append(machine: _Machine) -> None:
    value = machine.stack.pop()
    _list(machine.stack[-1]).append(value)


def _appends(machine: _Machine) -> None:
    values = machine.since_mark()
    _list(machine.stack[-1]).extend(values)


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError
    return value


def _set_item(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _fill(machine.stack[-1], [key, value])


def _set_items(machine: _Machine) -> None:
    items = machine.since_mark()
    _fill(machine.stack[-1], items)


def _dict(machine: _Machine) -> dict[Any, Any]:
    return _fill({}, machine.since_mark())


def _fill(target: Any, items: list[Any]) -> dict[Any, Any]:
    if type(target) is not dict or len(items) % 2:
        raise TypeError
    keys = items[::2]
    for key in keys:
        if type(key) is not str and not (type(key) is int and abs(key) < LARGEST_KEY):
            raise FormatError("pickle has a dict with a key that is neither text nor a number")
    target.update(zip(keys, items[1::2], strict=True))
    return target


def _pop(machine: _Machine) -> None:
    machine.stack.pop()


def _pop_mark(machine: _Machine) -> None:
    machine.since_mark()


def _remember_line(machine: _Machine) -> None:
    machine.memo[_index(machine)] = machine.stack[-1]


def _memoize(machine: _Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _index(machine: _Machine) -> int:
    line = machine.line()
    if len(line) > 10:
        raise FormatError("pickle has a memo index that is too large")
    return int(line)


def _skip(size: int) -> Op:
    def operation(machine: _Machine) -> None:
        machine.take(size)

    return operation


_STOP, _MARK, _EMPTY_LIST = pickle.STOP[0], pickle.MARK[0], pickle.EMPTY_LIST[0]
_BINGET, _LONG_BINGET, _BININT1 = pickle.BINGET[0], pickle.LONG_BINGET[0], pickle.BININT1[0]
_BINPUT, _LONG_BINPUT = pickle.BINPUT[0], pickle.LONG_BINPUT[0]
_INLINED = (_LONG_BINGET, _LONG_BINPUT)
"""Opcodes that `run` handles if their argument is there."""
_OPERATIONS: dict[int, Op] = {
    pickle.PROTO[0]: _skip(1),
    pickle.FRAME[0]: _skip(8),
    pickle.NONE[0]: _push(lambda machine: None),
    pickle.NEWTRUE[0]: _push(lambda machine: True),
    pickle.NEWFALSE[0]: _push(lambda machine: False),
    pickle.INT[0]: _push(_decimal),
    pickle.LONG[0]: _push(_decimal),
    pickle.FLOAT[0]: _push(lambda machine: float(machine.line())),
    pickle.BININT[0]: _push(lambda machine: struct.unpack("<i", machine.take(4))[0]),
    pickle.BININT2[0]: _push(lambda machine: machine.number(2)),
    pickle.LONG1[0]: _long(1),
    pickle.LONG4[0]: _long(4),
    pickle.BINFLOAT[0]: _push(lambda machine: struct.unpack(">d", machine.take(8))[0]),
    pickle.UNICODE[0]: _push(lambda machine: machine.line()),
    pickle.SHORT_BINUNICODE[0]: _text(1),
    pickle.BINUNICODE[0]: _text(4),
    pickle.BINUNICODE8[0]: _text(8),
    pickle.SHORT_BINBYTES[0]: _push(lambda machine: machine.take(machine.number(1))),
    pickle.BINBYTES[0]: _push(lambda machine: machine.take(machine.number(4))),
    pickle.BINBYTES8[0]: _push(lambda machine: machine.take(machine.number(8))),
    pickle.LIST[0]: _push(lambda machine: machine.since_mark()),
    pickle.APPEND[0]: _append,
    pickle.APPENDS[0]: _appends,
    pickle.EMPTY_TUPLE[0]: _push(lambda machine: ()),
    pickle.TUPLE[0]: _push(lambda machine: tuple(machine.since_mark())),
    pickle.TUPLE1[0]: _tuple(1),
    pickle.TUPLE2[0]: _tuple(2),
    pickle.TUPLE3[0]: _tuple(3),
    pickle.EMPTY_DICT[0]: _push(lambda machine: {}),
    pickle.DICT[0]: _push(_dict),
    pickle.SETITEM[0]: _set_item,
    pickle.SETITEMS[0]: _set_items,
    pickle.POP[0]: _pop,
    pickle.POP_MARK[0]: _pop_mark,
    pickle.PUT[0]: _remember_line,
    pickle.MEMOIZE[0]: _memoize,
    pickle.GET[0]: _push(lambda machine: machine.memo[_index(machine)]),
}
