"""How commands end: the exit statuses, and every failure as one line on stderr.

Scripts and schedulers act on these numbers, so 1 means "something was found" and nothing else.
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

NOTHING_FOUND = 0
FOUND = 1
BAD_INPUT = 2
"""The source cannot be read, or the command makes no sense."""
FAULT = 3
"""stepscope itself is wrong."""
INTERRUPTED = 130
BROKEN_PIPE = 141
"""128 + SIGPIPE, as if the signal had ended us: whoever read our output is gone."""

_CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]
"""What typer raises for any bad command line; it has no public name in every version of typer."""
assert _CommandLineError.__name__ == "ClickException", _CommandLineError


def guarded(command: Callable[[], int]) -> int:
    """Runs a command and turns whatever it raises into an exit status and one line."""
    try:
        status = command()
        sys.stdout.flush()
    except (StepscopeError, _CommandLineError) as error:
        complain(_message(error))
        return BAD_INPUT
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_is_gone()
    except SystemExit as end:
        # typer ends with status 1 when it meets a broken pipe, which for us means "found"
        return _reader_is_gone() if isinstance(end.__context__, OSError) else _status(end)
    except Exception as error:  # noqa: BLE001  the last line of defence, and it says so
        return _fault(error)
    return status


def complain(message: str) -> None:
    """One line on stderr, whatever the message holds."""
    print(f"stepscope: {' '.join(message.split())}", file=sys.stderr)


def _message(error: Exception) -> str:
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return str(error)
    command = getattr(getattr(error, "ctx", None), "command_path", "stepscope")
    return f"{format_message().rstrip('.')}; `{command} --help` shows what there is"


def _status(end: SystemExit) -> int:
    return end.code if isinstance(end.code, int) else FAULT


def _reader_is_gone() -> int:
    """Keeps Python from complaining about the same pipe once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _fault(error: Exception) -> int:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    complain(f"internal error: {what}; please report it with the log {_write_log(error)}")
    return FAULT


def _write_log(error: Exception) -> str:
    """Where the log is, or why there is none."""
    about = f"stepscope {stepscope.__version__}, Python {platform.python_version()}"
    trace = "".join(traceback.format_exception(error))
    text = f"{about}, {platform.platform()}\ncommand line: {sys.argv}\n{trace}"
    try:
        handle, path = tempfile.mkstemp(".log", "stepscope-fault-", _log_folder())
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as log:
            log.write(text)
    except OSError as why:
        return f"(which could not be written: {why})"
    return path


def _log_folder() -> Path | None:
    """`$XDG_STATE_HOME/stepscope` where that is set and writable; None: the temporary folder."""
    home = os.environ.get("XDG_STATE_HOME")
    if not home:
        return None
    folder = Path(home) / "stepscope"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None
