"""The command line with a reader and a diagnosis under the test's control, for tests.

`python fakes.py diagnose sample:hang` is `stepscope diagnose` on a source that leads to that
sample; `broken:why` cannot be read, `bug:` meets a fault of stepscope itself, and `changing:a,b`
becomes another sample at every look, then presses Ctrl-C.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from stepscope.diagnose.finding import Diagnosis
from stepscope.errors import SourceError
from tests.report.samples import SAMPLES


class JobReader:
    """Yields sample names where the real one yields windows."""

    def __init__(self, source: str, *_others: object) -> None:
        kind, _, rest = source.partition(":")
        self._kind, self._rest, self.problems = kind, rest, ["1 file\nwas left out"]
        self._names = iter(rest.split(","))
        self._last = ""
        self.version = 0

    def read(self) -> Any:
        return self.refresh()

    def refresh(self) -> Any:
        if self._kind == "broken":
            raise SourceError(f"cannot read {self._rest}:\nno such folder; is the name right?")
        if self._kind == "interrupt":
            raise KeyboardInterrupt
        if self._kind == "bug":
            raise ZeroDivisionError("division by zero")
        name = next(self._names, self._last if self._kind == "sample" else None)
        if name is None:
            raise KeyboardInterrupt
        if name == "unreachable":
            raise SourceError("the bucket does not answer")
        self.version += name != self._last
        self._last = name
        return self._last


def diagnose(window: Any, settings: object = None, in_place: bool = False) -> Diagnosis:
    return SAMPLES[window]()


def modules() -> dict[str, ModuleType]:
    """What takes the place of our own."""
    reader, runner = ModuleType("stepscope.store.reader"), ModuleType("stepscope.diagnose.run")
    reader.JobReader = JobReader  # type: ignore[attr-defined]
    runner.diagnose = diagnose  # type: ignore[attr-defined]
    return {reader.__name__: reader, runner.__name__: runner}


if __name__ == "__main__":
    sys.modules |= modules()
    from stepscope.cli import main

    sys.exit(main())
