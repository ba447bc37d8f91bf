"""JSON that foreign programs wrote, a few values of a file, as Python's own."""

from __future__ import annotations

from typing import Any


def plain(text: bytes) -> Any:
    """The value, or None where there is none that Python can hold."""
    # most files need it for nothing but whole numbers
    if text.isdigit() and len(text) < 20:
        return int(text)
    import json

    try:
        return json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
