"""Sockets whose numbers the training script may close and give to something of its own.

`os.closerange(3, 256)`, or a library that becomes a daemon, closes descriptors that it does not
own; the next file that the script opens gets our number. So each socket is remembered by its inode
and checked before every use. If the number now belongs to something else, it is forgotten, not
closed.

Another thread may still close the number between the check and the use. Only calls that fail on
anything but a socket are made (`send`, `recv`), so a file of the script is safe even then. An
eventfd or a pipe would not do: all eventfds share an inode, and `write` works on any file.
"""

from __future__ import annotations

import contextlib
import socket

from stepscope.wire.files import identity

_WAKE_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class LostSocketError(OSError):
    """The script has closed our socket; its number may belong to another file."""


class OwnSocket:
    """A socket of ours, as long as its number still is."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._identity = identity(sock.fileno())

    @property
    def descriptor(self) -> int | None:
        """The number, to poll it; None if it is no longer ours."""
        number = self._socket.fileno()
        return number if number >= 0 and identity(number) == self._identity else None

    def get(self) -> socket.socket:
        """The socket, for one use.

        Raises:
            LostSocketError: the script has closed it.
        """
        if self.descriptor is None:
            raise LostSocketError("the script has closed our socket")
        return self._socket

    def close(self) -> None:
        """Closes the socket, or forgets the number if it is no longer ours."""
        if self.descriptor is None:
            self._socket.detach()
        else:
            self._socket.close()

    def __del__(self) -> None:
        """Python would close the number without a check."""
        with contextlib.suppress(Exception):  # while Python ends, anything may be gone
            self.close()


class Wake:
    """Wakes a thread that polls `descriptor`; it is made again if the script has closed it."""

    def __init__(self) -> None:
        self._heard, self._said = _pair()

    @property
    def descriptor(self) -> int | None:
        """What to poll for input; None if no descriptor is free."""
        if self._heard.descriptor is None or self._said.descriptor is None:
            with contextlib.suppress(OSError):
                self._heard, self._said = _pair()
        return self._heard.descriptor

    def set(self) -> None:
        """From any thread. If the script has just closed the pair, the thread wakes a bit later."""
        with contextlib.suppress(OSError):
            self._said.get().send(b"!", _WAKE_FLAGS)

    def close(self) -> None:
        self._heard.close()
        self._said.close()


def _pair() -> tuple[OwnSocket, OwnSocket]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return OwnSocket(one), OwnSocket(other)
