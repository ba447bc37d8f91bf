"""Exit statuses of all commands, and failures as one line on stderr.

Scripts and schedulers act on the exit status, so 1 only ever means "something was found".
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import typer

import stepscope
from stepscope.errors import StepscopeError
from stepscope.report.plain import printable

NOTHING_FOUND = 0
FOUND = 1
BAD_INPUT = 2
"""The source cannot be read, or the command line is invalid."""
FAULT = 3
"""An internal error of stepscope."""
INTERRUPTED = 130
BROKEN_PIPE = 141
"""128 + SIGPIPE, as if the signal had killed us: the reader of our output has exited."""

_CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]
"""What typer raises for an invalid command line; not every version of typer exports it."""
assert _CommandLineError.__name__ == "ClickException", _CommandLineError


def guarded(command: Callable[[], int]) -> int:
    """Runs a command; turns any exception into an exit status and one line on stderr."""
    try:
        status = command()
        sys.stdout.flush()
    except (StepscopeError, _CommandLineError) as error:
        print_stderr(_message(error))
        return BAD_INPUT
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_is_gone()
    except SystemExit as end:
        # typer exits with status 1 on a broken pipe, which for us means "found"
        return _reader_is_gone() if isinstance(end.__context__, OSError) else _status(end)
    except Exception as error:  # noqa: BLE001  every other exception is an internal error
        print_fault(error)
        return FAULT
    return status


def print_stderr(message: str) -> None:
    """Prints the message as one line on stderr, even if it contains line breaks."""
    print(f"stepscope: {printable(' '.join(message.split()))}", file=sys.stderr)


def _message(error: Exception) -> str:
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return str(error)
    command = getattr(getattr(error, "ctx", None), "command_path", "stepscope")
    return f"{format_message().rstrip('.')}; see `{command} --help`"


def _status(end: SystemExit) -> int:
    return end.code if isinstance(end.code, int) else FAULT


def _reader_is_gone() -> int:
    """Redirects stdout so that Python's flush at exit does not fail on the same broken pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def print_fault(error: Exception) -> None:
    """Says that there was an internal error, and where its log is."""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    print_stderr(f"internal error: {what}; please report it and attach the log {_write_log(error)}")


def _write_log(error: Exception) -> str:
    """The path of the log, or a note that it could not be written."""
    about = f"stepscope {stepscope.__version__}, Python {platform.python_version()}"
    trace = "".join(traceback.format_exception(error))
    text = f"{about}, {platform.platform()}\ncommand line: {sys.argv}\n{trace}"
    try:
        handle, path = tempfile.mkstemp(".log", "stepscope-fault-", _log_folder())
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as log:
            log.write(text)
    except OSError as why:
        return f"(could not be written: {why})"
    return path


def _log_folder() -> Path | None:
    """`$XDG_STATE_HOME/stepscope` if set and writable; else None, the temporary folder."""
    home = os.environ.get("XDG_STATE_HOME")
    if not home:
        return None
    folder = Path(home) / "stepscope"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None
