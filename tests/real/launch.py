"""The least a launcher does: starts so many ranks of a script and ends with the worst status.

    python launch.py [--fork] RANKS SCRIPT [ARGUMENTS]

Unlike torchrun it does not import torch, which takes longer than most of the jobs here. With
`--fork` the script is imported once, torch and all, and its `main` runs in ranks forked from there:
each then takes over from the injected start-up, as if it had just imported torch itself. Of four
seconds of processor time per rank that leaves nearly none. Importing without garbage collections,
and not taking two thousand modules apart at the end of each rank, is a third of that.

On several hosts, start it on each with the same `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, and
`FIRST_RANK`. SIGTERM is passed on to the ranks; those that live on are killed three seconds later.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path


def main(ranks: int, command: list[str], forked: bool) -> int:
    start = _forked(command) if forked else _executed(command)
    first = int(os.environ.get("FIRST_RANK", "0"))
    job = {} if "FIRST_RANK" in os.environ else _alone(ranks)
    pids = [
        start({**job, "RANK": str(first + local), "LOCAL_RANK": str(local)})
        for local in range(ranks)
    ]
    signal.signal(signal.SIGTERM, lambda *_: _end(pids))
    return max(abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) for pid in pids)


def _alone(ranks: int) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def _end(pids: list[int]) -> None:
    _send(pids, signal.SIGTERM)
    killing = threading.Timer(3.0, _send, [pids, signal.SIGKILL])
    killing.daemon = True
    killing.start()


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


Start = Callable[[dict[str, str]], int]
"""Starts a rank with this environment; gives its process id."""


def _executed(command: list[str]) -> Start:
    def start(rank: dict[str, str]) -> int:
        arguments = [sys.executable, *command]
        return os.posix_spawn(sys.executable, arguments, {**os.environ, **rank})

    return start


def _forked(command: list[str]) -> Start:
    recorded = _disarm_start_up()
    gc.disable()
    script = _imported(Path(command[0]))
    _import_compiler()
    gc.enable()
    gc.freeze()

    def start(rank: dict[str, str]) -> int:
        pid = os.fork()
        if pid:
            return pid
        os.environ.update(rank)
        sys.argv = command
        if recorded:
            from stepscope.collect import startup

            startup.after_torch_import()
        script()
        atexit._run_exitfuncs()
        os._exit(0)

    return start


def _disarm_start_up() -> bool:
    """Keeps the injected start-up from recording us; whether there was one."""
    waiting = [f for f in sys.meta_path if getattr(f, "__module__", "") == "sitecustomize"]
    for finder in waiting:
        sys.meta_path.remove(finder)
    return bool(waiting)


def _imported(path: Path) -> Callable[[], None]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = script
    spec.loader.exec_module(script)
    main: Callable[[], None] = script.main
    return main


def _import_compiler() -> None:
    """The first optimizer of a process does, for two seconds."""
    import torch

    torch.optim.SGD([torch.zeros(1)])


if __name__ == "__main__":
    forked = sys.argv[1] == "--fork"
    ranks, *command = sys.argv[1 + forked :]
    sys.exit(main(int(ranks), command, forked))
