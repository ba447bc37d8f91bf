"""The connections of producers, by file descriptor: accepted, read and written without waiting."""

from __future__ import annotations

import logging
import select
import selectors
import socket
from collections.abc import Iterator
from pathlib import Path

from stepscope.processor.sockets.listener import BACKLOG, Listener
from stepscope.wire.frames import MAX_PACKET_BYTES
from stepscope.wire.peer import is_running, other_user

logger = logging.getLogger(__name__)

PACKETS_PER_TURN = 64


class Connections:
    """The listening socket, and every connection to it of this user."""

    def __init__(self, path: Path) -> None:
        """Raises what `Listener` raises."""
        self._listener = Listener(path)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener.socket, selectors.EVENT_READ)
        self._lines: dict[int, socket.socket] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, fd: int) -> bool:
        return fd in self._lines

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._lines))

    def wait(self, seconds: float) -> tuple[bool, list[int]]:
        """Waits for packets; returns whether somebody connects, and which connections to read."""
        ready = [key for key, _ in self._selector.select(timeout=seconds)]
        connects = any(key.fileobj is self._listener.socket for key in ready)
        return connects, [key.fd for key in ready if key.fd in self._lines]

    def accept(self) -> Iterator[str]:
        """Accepts all pending connections: the ranks of a host connect at the same time.

        Gives the user of each connection that is refused because it comes from another one.
        """
        for _ in range(BACKLOG):
            try:
                line, _ = self._listener.socket.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the peer disconnected, or too many files are open
                logger.debug("no new connection: %s", error)
                return
            user = other_user(line)
            if user is None:
                line.setblocking(False)
                self._lines[line.fileno()] = line
                self._selector.register(line, selectors.EVENT_READ)
            else:
                line.close()
                yield user

    def packets(self, fd: int) -> Iterator[bytes]:
        """What is available, up to the limit of one turn; b"" at last if the peer disconnected."""
        line = self._lines[fd]
        for _ in range(PACKETS_PER_TURN):
            try:
                data = line.recv(MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            yield data
            if not data:
                return

    def send(self, fd: int, packet: bytes) -> bool:
        """Sends without waiting; False: the peer is gone or does not read."""
        try:
            self._lines[fd].send(packet)
        except OSError:  # its periodic checks must do
            logger.debug("cannot send to connection %d", fd)
            return False
        return True

    def line(self, fd: int) -> socket.socket:
        return self._lines[fd]

    def is_live(self, fd: int) -> bool:
        """Whether a process still holds the other end, which may not have been read to its end."""
        poll = select.poll()
        poll.register(fd, 0)
        return not poll.poll(0) and is_running(self._lines[fd])

    def pop(self, fd: int) -> socket.socket | None:
        """Takes a connection out; whoever takes it closes it."""
        line = self._lines.pop(fd, None)
        if line is not None:
            self._selector.unregister(line)
        return line

    def renew(self) -> bool:
        """Listens on a new socket if the file of ours was deleted.

        Raises:
            UsageError: the socket cannot be created again.
        """
        before = self._listener.socket
        if not self._listener.renew():
            return False
        self._selector.unregister(before)
        self._selector.register(self._listener.socket, selectors.EVENT_READ)
        return True

    def close(self) -> None:
        """Stops listening."""
        self._listener.close()
