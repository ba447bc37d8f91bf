"""Makes names safe to show: they come from training scripts and from files of others."""

from __future__ import annotations

import unicodedata

_REPLACED = ("Cc", "Cs")
"""Control characters, with which a name could drive a terminal, and lone surrogates."""


def printable(text: str, kept: str = "") -> str:
    """The text with a replacement for each control character but those to keep."""
    if text.isprintable():
        return text
    return "".join("�" if unicodedata.category(c) in _REPLACED and c not in kept else c
                   for c in text)  # fmt: skip
