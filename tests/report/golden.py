"""Golden files: what a report is expected to be, to be read and edited by people.

`STEPSCOPE_WRITE_GOLDEN=1 pytest tests/report` writes them anew; read the diff before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def check_golden(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("STEPSCOPE_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
