"""The least a launcher does: starts so many ranks of a script and ends with the worst status.

    python launch.py RANKS SCRIPT [ARGUMENTS]

Unlike torchrun it does not import torch, which takes longer than most of the jobs here.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys


def main(ranks: int, command: list[str]) -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
           "MASTER_PORT": str(port)}  # fmt: skip
    started = [
        subprocess.Popen(
            [sys.executable, *command], env={**job, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(ranks)
    ]
    return max(abs(process.wait()) for process in started)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
