"""Makes names safe to show: they come from training scripts and from files of others."""

from __future__ import annotations

import re
import unicodedata

_REPLACED = ("Cc", "Cs")
"""Control characters, with which a name could drive a terminal, and lone surrogates."""


_INSTALLED = re.compile(r"/[^\s()\"';]*/(?:site|dist)-packages/")
"""Where packages are installed: long, and the same for all of them."""


def without_roots(text: str) -> str:
    """The text with paths of installed packages from the package on.

    >>> without_roots("forward (/home/me/venv/lib/python3.11/site-packages/torch/nn/linear.py:134)")
    'forward (torch/nn/linear.py:134)'
    """
    return _INSTALLED.sub("", text)


def printable(text: str, kept: str = "") -> str:
    """The text with a replacement for each control character but those to keep."""
    if text.isprintable():
        return text
    return "".join("�" if unicodedata.category(c) in _REPLACED and c not in kept else c
                   for c in text)  # fmt: skip
