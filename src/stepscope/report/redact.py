"""Replaces what a text should not give away: folders, hosts, addresses, values that look secret.

Lossy on purpose. File names, line numbers, functions and numbers stay, because without them nobody
could help.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>)]+"), "[url]"),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"), "[mail]"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "[address]"),
    (re.compile(r"\b(?:[0-9A-Fa-f]{1,4}:){3,7}[0-9A-Fa-f]{1,4}\b"), "[address]"),
    (re.compile(r"(?i)\b((?:\w*(?:token|secret|passw\w*|api_?key|credential)\w*))"
                r"(\s*[=:]\s*)[\"']?[^\s\"',;)]+[\"']?"), r"\1\2[redacted]"),
    (re.compile(r"--(\w[\w-]*)[= ](?!-)[^\s]+"), r"--\1=[redacted]"),
    (re.compile(r"(?:(?<=[\s('\"=:,;])|^)(?:~|[A-Za-z]:)?(?:[\\/][\w.@+ -]+)*[\\/]"
                r"([\w.+-]+\.\w+)"), r"…/\1"),
    (re.compile(r"(?:(?<=[\s('\"=,;])|^)(?:~|[A-Za-z]:)?(?:[\\/][\w.@+-]+){2,}[\\/]?"), "[path]"),
    (re.compile(r"\b(?:[0-9a-f]{32,}|(?:ghp_|github_pat_|hf_|sk-|glpat-|AKIA)[\w-]{12,})\b"),
     "[redacted]"),
)  # fmt: skip
"""In this order: what holds another kind inside is replaced first."""


class Redactor:
    """Replaces names of one job consistently: the same host has the same number everywhere."""

    def __init__(self, hosts: Sequence[str], job_id: str) -> None:
        names = {name: f"host-{chr(65 + at)}" if at < 26 else f"host-{at}"
                 for at, name in enumerate(dict.fromkeys(hosts)) if name}  # fmt: skip
        if job_id:
            names.setdefault(job_id, "the job")
        self._names = names
        longest = sorted(names, key=len, reverse=True)
        words = "|".join(map(re.escape, longest))
        self._known = re.compile(rf"(?<![\w.-])(?:{words})(?![\w.-]*\w)") if words else None

    def __call__(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(lambda found: self._names[found.group()], text)
        for pattern, instead in _RULES:
            text = pattern.sub(instead, text)
        return text
