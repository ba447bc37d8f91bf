"""The processor of a host: one socket, many producers, one job folder per job.

This thread only reads packets and carries out what `state` decides. Other threads store rows
(`folders.jobs`) and sample the processes (`sampling.watcher`). A producer never waits for any of
them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable
from types import FrameType
from typing import Any

from stepscope.errors import UsageError
from stepscope.processor.counters.sampler import Wanted
from stepscope.processor.counters.windows import Sink, Windows
from stepscope.processor.folders.jobs import JobFolders
from stepscope.processor.folders.upkeep import Upkeep
from stepscope.processor.hardware.sampler import adapters
from stepscope.processor.instructions import (
    Append,
    Confirm,
    Exited,
    Follow,
    Instruction,
    JobKnown,
    Left,
    LookClosely,
    NotProfiled,
    OpenOps,
    Parent,
    ProfileRanks,
    RankProfiled,
    Refuse,
    Relay,
    SampleCounters,
    Stalled,
    StoreNow,
    Unwatch,
    Watch,
    WriteOrder,
)
from stepscope.processor.places import JobPlaces
from stepscope.processor.profiling.profiles import Profiles
from stepscope.processor.records.normalise import Rows
from stepscope.processor.reporting.reporter import Reporting
from stepscope.processor.sampling.exits import Exits
from stepscope.processor.sampling.stopped import StoppedProcesses
from stepscope.processor.sampling.watcher import OutsideWatcher
from stepscope.processor.settings import FINISH_SECONDS, Settings
from stepscope.processor.sockets.connections import PACKETS_PER_TURN, Connections
from stepscope.processor.sockets.followers import Followers
from stepscope.processor.sockets.polling import (
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    Load,
    tick_seconds,
)
from stepscope.processor.state.fragments import with_devices
from stepscope.processor.state.host_state import HostState
from stepscope.processor.state.stalls import Stalls
from stepscope.processor.state.windows import Windows as ProfileWindows
from stepscope.trace import Host
from stepscope.trace.host import host_name
from stepscope.wire.control import (
    Counted,
    Hurry,
    encode_counted,
    encode_flushed,
    encode_hurry,
    encode_losses_stored,
    encode_relayed,
)
from stepscope.wire.frames import PacketKind, pack

logger = logging.getLogger(__name__)

_DUTY_SECONDS = 0.25
"""Conditions that take seconds (a step sequence, more kernels, a long enough silence) are not
checked at every tick: that cost as much as the tick itself."""
HURRY = Hurry(2.0)
"""Once a process has stopped, the other producers report outstanding operators immediately for this
long. If steps take longer, their ordinary checks, ten a second, are early enough."""
_LAST_TURNS = 16
"""More than a socket buffers. A producer that never pauses must not prevent shutdown."""
_MOST_LOGGED = 100


class Processor:
    """Carries out the decisions of `state`. `run` returns on a signal or after a long idle time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._host = host_name()
        self._reporting = Reporting(self._host, settings.remote_write)
        self._connections = Connections(settings.socket)
        self._followers = Followers()
        self._jobs = JobFolders(self._host, settings, self._followers.notify)
        self._profiles = Profiles(self._host, settings, self._store, self._jobs.folders)
        self._watcher = OutsideWatcher(self._host, settings, self._store)
        self._places = JobPlaces(self._profiles, self._watcher)
        clock, automatic = time.monotonic, settings.profile
        windows = ProfileWindows(self._host, self._places, clock, automatic=automatic)
        self._state = HostState(self._connections.is_live, windows)
        self._counters = self._windows()
        self._upkeep = Upkeep(self._host, settings.keep_options(), self._jobs.folders)
        self._nics = adapters()
        self._stop = self._stop_now = self._leaving = False
        self._logged: set[str] = set()
        self._busy_at = time.monotonic()
        self._load = Load()
        self._tick_at, self._tick_seconds = 0.0, SHORTEST_SECONDS
        self._duties_at = 0.0
        self._stalls = Stalls()
        self._stalled_jobs: set[str] = set()  # jobs that were reported as stalled
        self._stopped = StoppedProcesses()
        self._exits = Exits()
        self._stopped_before: dict[str, frozenset[int]] = {}
        self._parents: dict[int, int] = {}

    def _windows(self) -> Windows:
        settings = self._settings
        hz = settings.counters_hz
        wanted = None if hz is None else Wanted(hz, settings.counters_seconds)
        # bypasses series and traces, which have no room for ten thousand samples a second
        sink = Sink(
            self._state.jobs, self._jobs.record, self._jobs.hurry, self._watcher.leave_counters
        )
        return Windows(self._host, len(self._watcher.gpus), wanted, sink)

    def run(self) -> None:
        """Serves until SIGTERM, SIGINT or the idle timeout, then stores what is left."""
        logger.info("processor of %s listens on %s", self._host, self._settings.socket)
        while not self._stop and not self._idle():
            self._serve_once()
        self._finish()
        self._close()

    def _serve_once(self) -> None:
        connects, ready = self._ready()
        if connects:
            self._accept()
        for fd in ready:
            if fd in self._connections:  # not yet read to its end for another's sake
                self._read(fd)
        self._note_exits()
        self._tick()
        self._do_duties()

    def _finish(self) -> None:
        """Serves on while traces of windows are summarized, unless asked twice to stop."""
        self._serve_once()  # what was sent before the signal
        until = time.monotonic() + FINISH_SECONDS
        if self._profiles.busy:
            logger.info("summarizing the traces that wait; a second signal ends that")
        while self._profiles.hurry() and time.monotonic() < until and not self._stop_now:
            self._serve_once()

    def stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Asks `run` to return, and a second time to do so at once; safe as a signal handler."""
        self._stop_now, self._stop = self._stop, True

    def _ready(self) -> tuple[bool, list[int]]:
        """Waits until somebody connects or connections are readable.

        While producers send little and no process is stopped, their packets are read together at
        the next tick, or as soon as a process ends or a launcher reports a stopped one.
        """
        now = time.monotonic()
        if not self._connections:
            return self._connections.wait(LONGEST_SECONDS)
        if self._stopped_before or self._load.is_busy(now):
            return self._connections.wait(self._tick_seconds)
        self._exits.wait(self._parents, max(self._tick_at - now, 0.0))
        return self._connections.wait(0)

    def _tick(self) -> None:
        """Checks for stalls and stopped processes. Runs on time, not on every packet."""
        if time.monotonic() < self._tick_at:
            return
        stopped, now_ns = self._with_stopped(), time.time_ns()
        stalled = self._state.stalled(now_ns, stopped)
        self._carry_out(self._stalls.due(stalled, time.monotonic()))
        self._tick_seconds = tick_seconds(
            self._state.shortest_step_ns(), stopped=bool(stopped),
            waiting=self._state.is_waiting(now_ns),
            launchers_report=self._stopped.are_children_of(self._parents.values()),
        )  # fmt: skip
        self._tick_at = time.monotonic() + self._tick_seconds

    def _with_stopped(self) -> Collection[str]:
        """Returns jobs that have a stopped process; samples a process that has just stopped."""
        stopped, before = self._stopped.look(), self._stopped_before
        self._stopped_before = stopped
        for job, pids in stopped.items():
            if pids - before.get(job, frozenset()):
                self._hurry(job)
                self._watcher.process_stopped()
        return stopped.keys()

    def _hurry(self, job: str) -> None:
        self._relay(Relay(tuple(self._state.connections(job)), encode_hurry(HURRY)))

    def _note_exits(self, *, at_once: bool = False) -> None:
        """Stores how processes ended as soon as it is known, and not with the next rows."""
        for job, rows in self._exits.look(at_once=at_once):
            self._store(job, "exits", rows)
            self._jobs.hurry(job)

    def _do_duties(self) -> None:
        if time.monotonic() < self._duties_at:
            return
        self._duties_at = time.monotonic() + _DUTY_SECONDS
        self._carry_out(self._state.tick(time.time_ns()))
        self._read_orders()
        self._listen_again()
        self._retire()
        self._upkeep.turn()
        self._reporting.turn()

    def _read_orders(self) -> None:
        polls = {job: self._places.timing(job, self._state.world_size(job)).poll_s
                 for job in self._state.jobs()}  # fmt: skip
        for listed in self._profiles.turn(polls):
            self._state.orders_listed(listed.job, listed.new, listed.began_s)

    def _listen_again(self) -> None:
        try:
            if self._connections.renew():
                logger.warning("%s was deleted; listening there again", self._settings.socket)
        except UsageError as error:
            self._log_once(f"cannot listen again: {error}")

    def _retire(self) -> None:
        """Drops the state of jobs that have ended: a processor may run for months."""
        for job in self._jobs.retire(self._state.jobs()):
            self._state.forget(job)
            self._reporting.forget(job)
            self._counters.forget(job)
            self._profiles.forget(job)

    def _idle(self) -> bool:
        if self._connections or self._profiles.busy:
            self._busy_at = time.monotonic()
        idle = time.monotonic() - self._busy_at
        return self._settings.exit_when_idle and idle > self._settings.idle_seconds

    def _accept(self) -> None:
        for user in self._connections.accept():
            self._log_refusal(f"it comes from {user}")

    def _read(self, fd: int) -> bool:
        """Reads what is available. True: the limit of one turn was reached and more may wait."""
        packets = received_bytes = 0
        for data in self._connections.packets(fd):
            if not data:
                self._hang_up(fd)
                return False
            packets += 1
            received_bytes += len(data)
            self._load.received(received_bytes, time.monotonic())
            self._carry_out(self._state.packet(fd, data, time.time_ns()))
            if fd not in self._connections:
                return False
        return packets == PACKETS_PER_TURN

    def _hang_up(self, fd: int) -> None:
        connection = self._connections.pop(fd)
        if connection is not None:
            self._followers.remove(connection)
            self._parents.pop(fd, None)
            connection.close()
            self._carry_out(self._state.disconnected(fd))

    def _flush_for(self, it: StoreNow, notes: tuple[str, ...], line: socket.socket) -> None:
        """Stores everything of a job, then replies. Runs on a thread: producers must not wait."""
        job = it.job
        self._watcher.finish(job, timeout=4.0)
        if it.finish:
            self._profiles.finish(job, FINISH_SECONDS)
        trouble = self._jobs.flush(job, timeout=10.0)
        answer = encode_flushed(job, trouble, (*notes, *self._jobs.notes(job)))
        reply = _control(answer)
        try:
            line.send(reply)
        except OSError:
            logger.debug("the requester of a flush of %s disconnected before the reply", job)
        finally:
            line.close()

    def _carry_out(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            self._handlers[type(instruction)](self, instruction)

    def _append(self, it: Append) -> None:
        self._store(it.job, it.table, it.rows)
        if it.table == "steps":
            self._counters.stepped(it.job, it.rows["step"])

    def _confirm(self, it: Confirm) -> None:
        line = self._connections.line(it.connection)

        def confirm() -> None:
            with contextlib.suppress(OSError):  # it is gone: it names them again
                line.send(_control(encode_losses_stored()))

        self._jobs.once_stored(it.job, confirm)

    def _store(self, job: str, table: str, rows: Rows) -> None:
        self._jobs.append(job, table, rows)
        self._reporting.note(job, table, rows)
        self._profiles.note(job, table, rows)

    def _open_ops(self, it: OpenOps) -> None:
        """Replaces the list of outstanding operators.

        It is stored immediately only when a job stalls and when it resumes: with long steps, some
        operators are always outstanding.
        """
        if it.rows and it.job in self._stopped_before:
            self._watcher.stalled(it.job)
            if not self._stalls.has(it.job):
                self._tick_at = 0.0  # a rank waits for the stopped process: report now
            self._stalled_jobs.add(it.job)
        self._jobs.replace_open(it.job, it.rows)
        if it.job in self._stalled_jobs:
            self._jobs.hurry(it.job)
        if not it.rows:
            self._stalled_jobs.discard(it.job)

    def _job_known(self, it: JobKnown) -> None:
        gpus, uuids = self._watcher.gpus, self._watcher.gpu_uuids
        here = Host(self._host, (), self._nics, gpus, uuids)
        self._jobs.open(it.job, it.store, with_devices(it.fragment, here))

    def _watch(self, it: Watch) -> None:
        self._watcher.watch(it)
        self._stopped.watch(it.job, it.pid)
        self._exits.watch(it)

    def _unwatch(self, it: Unwatch) -> None:
        self._watcher.unwatch(it)
        self._stopped.unwatch(it.pid)
        if not self._leaving:  # else it is we who leave
            self._exits.hung_up(it)

    def _left(self, it: Left) -> None:
        self._exits.announced(it)

    def _exited(self, it: Exited) -> None:
        self._exits.reported(it)

    def _stalled(self, it: Stalled) -> None:
        """Samples the processes, and records that it did: a hang is detected by time that passes
        while nothing else is recorded."""
        self._watcher.stalled(it.job)
        self._stalled_jobs.add(it.job)
        self._counters.stalled()
        self._store(it.job, "hardware", it.rows(time.time_ns()))
        self._jobs.hurry(it.job)

    def _store_now(self, it: StoreNow) -> None:
        for fd in self._state.connections(it.job):  # the last words of processes that have ended
            self._read(fd)
        self._note_exits(at_once=True)
        line = self._connections.line(it.connection).dup()
        arguments = (it, self._state.claims.notes(it.job), line)
        threading.Thread(target=self._flush_for, args=arguments, daemon=True).start()

    def _follow(self, it: Follow) -> None:
        self._followers.add(it.job, self._connections.line(it.connection))

    def _parent(self, it: Parent) -> None:
        self._parents[it.connection] = it.pid
        if it.stopped:
            self._tick_at = 0.0

    def _relay(self, it: Relay) -> None:
        request = _control(it.payload)
        reached = sum([self._connections.send(fd, request) for fd in it.connections])
        if it.requester is not None:
            self._connections.send(it.requester, _control(encode_relayed(reached)))

    def _write_order(self, it: WriteOrder) -> None:
        self._profiles.write(it)

    def _profile_ranks(self, it: ProfileRanks) -> None:
        for connection, payload in it.requests:
            self._connections.send(connection, _control(payload))

    def _look_closely(self, it: LookClosely) -> None:
        self._watcher.closely(it.pids, it.seconds)
        self._profiles.asked(it.job, it.seconds)
        self._counters.profiled(it.seconds)

    def _profiled(self, it: RankProfiled) -> None:
        self._watcher.as_usual(it.pid)
        self._profiles.profiled(it, self._state.order_of(it))
        self._jobs.hurry(it.job)

    def _not_profiled(self, it: NotProfiled) -> None:
        self._profiles.missing(it)

    def _sample_counters(self, it: SampleCounters) -> None:
        line = self._connections.line(it.connection).dup()

        def answer(counted: Counted) -> None:
            with line, contextlib.suppress(OSError):  # the requester may have disconnected
                line.send(_control(encode_counted(counted)))

        self._counters.begin(Wanted(it.hz, it.seconds), answer)

    def _refuse(self, it: Refuse) -> None:
        self._log_refusal(it.why)
        self._hang_up(it.connection)

    def _log_refusal(self, why: str) -> None:
        """A connection that is retried every second is logged as a warning only once."""
        self._log_once(f"closing a connection: {why}")

    def _log_once(self, message: str) -> None:
        first = message not in self._logged and len(self._logged) < _MOST_LOGGED
        self._logged.add(message)
        logger.log(logging.WARNING if first else logging.DEBUG, "%s", message)

    _handlers: dict[type, Callable[[Processor, Any], None]] = {  # noqa: RUF012 - never written
        Append: _append,
        Confirm: _confirm,
        OpenOps: _open_ops,
        JobKnown: _job_known,
        Watch: _watch,
        Unwatch: _unwatch,
        Left: _left,
        Exited: _exited,
        Refuse: _refuse,
        Stalled: _stalled,
        StoreNow: _store_now,
        Follow: _follow,
        Parent: _parent,
        Relay: _relay,
        SampleCounters: _sample_counters,
        WriteOrder: _write_order,
        ProfileRanks: _profile_ranks,
        LookClosely: _look_closely,
        RankProfiled: _profiled,
        NotProfiled: _not_profiled,
    }

    def _close(self) -> None:
        self._leaving = True
        self._accept()
        for fd in self._connections:
            for _ in range(_LAST_TURNS):
                if not self._read(fd):
                    break
            self._hang_up(fd)
        self._note_exits(at_once=True)
        self._exits.close()
        self._upkeep.close()
        self._counters.close()
        self._profiles.close()
        self._watcher.close()
        self._stopped.close()
        self._jobs.close()
        self._reporting.close()
        self._connections.close()
        logger.info("processor of %s stopped", self._host)


def _control(payload: bytes) -> bytes:
    return pack(PacketKind.CONTROL, payload, os.getpid(), 0)


def serve(settings: Settings) -> None:
    """Runs a processor until SIGTERM or SIGINT.

    Raises:
        AlreadyRunningError: another processor listens on this socket.
        UsageError: the socket cannot be created.
    """
    asked: list[int] = []  # to stop before there is a processor, whose socket others see already
    _on_stop(lambda number, _frame: asked.append(number))
    processor = Processor(settings)
    _on_stop(processor.stop)
    for _ in asked:
        processor.stop()
    processor.run()


def _on_stop(handler: Callable[[int, FrameType | None], None]) -> None:
    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, handler)
