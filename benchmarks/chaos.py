"""Nothing that happens to stepscope changes the training that it records: a list of disasters.

    python -m benchmarks.chaos [--kills 100] [--ranks 2] [--only killed disk_full …]

Every case runs the same deterministic job (`chaos_train.py`) under `stepscope run`, and does
something to the processor, its socket, its clock or its store. Afterwards the losses must be those
of a plain run, bit by bit, and the exit status must be the script's own; `stepscope diagnose` must
read the folder, or say that there is nothing to read; and rows that are missing must be counted in
table `losses`, or `stepscope run` must have said that some are. Full and read-only disks need root,
jumps of the clock need libfaketime, a slow bucket needs moto; without them these cases are skipped.
Exit status 1: some case failed. `--keep` keeps the folders and what was printed.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos_jobs import BIN, Outcome, Room, wait_for

ANSWER_SECONDS = 2.0
"""Of a slow bucket: a request that usually takes a hundredth of it. Our choice."""
TROUBLE_SECONDS = 10.0
"""How long a disaster lasts: some flushes, attempts to connect and checks of `stepscope run`."""


class SkippedError(Exception):
    """This machine cannot do that."""


def nothing(room: Room) -> None:
    with room.job("nothing") as job:
        job.trains(200)


def killed(room: Room) -> None:
    """SIGKILL at any moment: while it starts, records or writes."""
    with room.job("killed") as job:
        job.trains()
        for _ in range(room.kills):
            victim = room.processor()
            time.sleep(random.uniform(0, 5))
            kill(victim)
        job.trains(600)  # until there is another one, which hears what may be lost


def kill(victim: psutil.Process) -> None:
    victim.kill()
    wait_for(lambda: is_dead(victim), "death")


def is_dead(victim: psutil.Process) -> bool:
    try:
        return victim.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def slow(room: Room) -> None:
    with room.job("slow") as job:
        job.trains()
        for _ in range(3):
            processor = room.processor()
            processor.suspend()
            time.sleep(TROUBLE_SECONDS)
            processor.resume()
            job.trains()


def deleted(room: Room) -> None:
    with room.job("deleted") as job:
        for _ in range(2):
            job.stored()
            shutil.rmtree(job.store, ignore_errors=True)
        job.stored()


def disk_full(room: Room) -> None:
    """There is room again after a while."""
    with disk(room) as store, room.job("disk_full", store) as job:
        job.stored()
        fill(store)
        time.sleep(TROUBLE_SECONDS)
        (store / "full").unlink()
        job.trains(200)


def disk_stays_full(room: Room) -> None:
    with disk(room) as store, room.job("disk_stays_full", store) as job:
        job.stored()
        fill(store)
        job.trains(200)


def read_only(room: Room) -> None:
    with disk(room) as store, room.job("read_only", store) as job:
        job.stored()
        mount("-o", "remount,ro", str(store))
        time.sleep(TROUBLE_SECONDS)
        mount("-o", "remount,rw", str(store))
        job.trains(200)


def never_writable(room: Room) -> None:
    with disk(room) as store:
        mount("-o", "remount,ro", str(store))
        with room.job("never_writable", store) as job:
            job.trains(200)


@contextmanager
def disk(room: Room) -> Iterator[Path]:
    """A small one of its own."""
    if os.geteuid():
        raise SkippedError("needs root, to mount a small disk")
    store = room.folder / "disk"
    store.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(store))
    try:
        yield store
    finally:
        subprocess.run(["umount", "--lazy", str(store)], check=True)


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def fill(store: Path) -> None:
    with contextlib.suppress(OSError), (store / "full").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


def bucket_refuses(room: Room) -> None:
    """403 and 500 in turns."""
    with refusing_server() as env, room.job("bucket_refuses", "s3://runs/team", env) as job:
        job.trains(400)


class _Refuses(BaseHTTPRequestHandler):
    answers = 0

    def _refuse(self) -> None:
        type(self).answers += 1
        self.send_error((403, 500)[type(self).answers % 2])

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _refuse  # noqa: N815

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def refusing_server() -> Iterator[dict[str, str]]:
    """It is taken for a bucket."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield bucket_at(server.server_address[1])
    server.shutdown()


def bucket_slow(room: Room) -> None:
    """Each answer takes seconds, also while the job is diagnosed."""
    with slow_server() as env, room.job("bucket_slow", "s3://runs/team", env) as job:
        job.trains(400)


@contextmanager
def slow_server() -> Iterator[dict[str, str]]:
    """A bucket in memory, and the variables with which stepscope finds it."""
    try:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server
    except ImportError as error:
        raise SkippedError("needs moto (pip install moto[server])") from error
    bucket = DomainDispatcherApplication(create_backend_app)

    def answer(*request: Any) -> Any:
        time.sleep(ANSWER_SECONDS)
        return bucket(*request)

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, answer, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = bucket_at(server.server_port)
    made = urllib.request.Request(f"{env['AWS_ENDPOINT_URL']}/runs", b"", method="PUT")
    made.add_header(
        "Authorization", "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"
    )
    urllib.request.urlopen(made).close()
    yield env
    server.shutdown()


def bucket_at(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
    }  # fmt: skip


def fork_storm(room: Room) -> None:
    """Every rank starts 20 processes in every step."""
    with room.job("fork_storm", forks=20) as job:
        job.trains(100)


def idle_connections(room: Room) -> None:
    with room.job("idle_connections") as job, contextlib.ExitStack() as held:
        job.trains()
        for _ in range(500):
            held.enter_context(room.connect())
        job.trains(200)


def garbage(room: Room) -> None:
    """Random packets of all sizes, each connection with some, for as long as it is believed."""
    with room.job("garbage") as job:
        job.trains()
        for _ in range(500):
            with contextlib.suppress(OSError), room.connect() as line:
                line.settimeout(1.0)
                for _ in range(10):
                    line.send(random.randbytes(random.choice([1, 8, 24, 100, 4096, 32768])))
        job.trains(200)


def clock_jumps(room: Room) -> None:
    """The processor's clock, by an hour ahead and then two back; ranks keep theirs."""
    found = [*Path("/usr/lib").glob("*/faketime/libfaketime.so.1")]
    if not found:
        raise SkippedError("needs libfaketime (apt install libfaketime)")
    offset = room.folder / "offset"
    offset.write_text("+0")
    env = {"LD_PRELOAD": str(found[0]), "FAKETIME_TIMESTAMP_FILE": str(offset),
           "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}  # fmt: skip
    command = [str(BIN / "stepscope"), "processor", "--socket", str(room.socket_path)]
    with subprocess.Popen(command, env=os.environ | env, stderr=subprocess.DEVNULL) as processor:
        wait_for(room.socket_path.exists, "socket")
        with room.job("clock_jumps") as job:
            for jump in ("+1h", "-1h", "+0"):
                job.trains(150)
                offset.write_text(jump)
            job.trains(150)
        processor.send_signal(signal.SIGTERM)


def two_jobs(room: Room) -> None:
    with room.job("two_jobs_a") as one, room.job("two_jobs_b") as other:
        one.trains(200)
        other.trains(200)


CASES: Sequence[Callable[[Room], None]] = (
    nothing, killed, slow, deleted, disk_full, disk_stays_full, read_only, never_writable,
    bucket_refuses, bucket_slow, fork_storm, idle_connections, garbage, clock_jumps, two_jobs,
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    names = [case.__name__ for case in CASES]
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    random.seed(16)
    root = Path(tempfile.mkdtemp(prefix="chaos-"))
    outcomes: list[Outcome] = []
    for case in (one for one in CASES if one.__name__ in arguments.only):
        outcomes += played(case, Room(root / case.__name__, arguments.ranks, arguments.kills))
    longest = max((len(one.losses) for one in outcomes), default=0)
    plain = Room(root, arguments.ranks, 0).plain(longest)
    good = [report(one, plain, arguments.ranks) for one in outcomes]
    if arguments.keep:
        print(f"kept in {root}")
    else:
        shutil.rmtree(root, ignore_errors=True)
    return 0 if all(good) else 1


def played(case: Callable[[Room], None], room: Room) -> Sequence[Outcome]:
    """The outcomes of a case, with a processor of its own."""
    room.folder.mkdir()
    begun = time.monotonic()
    try:
        case(room)
    except SkippedError as why:
        print(f"{case.__name__}: skipped: {why}", file=sys.stderr)
    else:
        print(f"{case.__name__}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    return room.outcomes


def report(one: Outcome, plain: Sequence[str], ranks: int) -> bool:
    """Prints a row of the table; whether the case held."""
    faults = one.faults(plain, ranks)
    print(f"{one.case:17} {len(one.losses):5} steps, status {one.status}, diagnose "
          f"{one.diagnosis}, {one.missing(ranks)} of {ranks * len(one.losses)} rows missing, "
          f"{one.counted} counted: {', '.join(faults) or 'held'}")  # fmt: skip
    if one.said:
        print(f"{'':18}said: {one.said[-1][:150]}")
    return not faults


if __name__ == "__main__":
    sys.exit(main())
