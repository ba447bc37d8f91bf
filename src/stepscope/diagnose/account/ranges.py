"""The expected range of each function: learned from healthy jobs, or else the shipped one.

Paper: EROICA (2026), section 4.3, gives the ranges of Python functions, collectives and kernels. It
gives none of copies and operators. A shipped range says what is worth a look; that every job has
some of it is weighed by what is ordinary (`account.belief`).
Cannot see: what a job of another model would need; learn that with `stepscope baseline`.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.diagnose.account.belief import ORDINARY, unusual_bits
from stepscope.diagnose.expected import Expected, Key, Range, Ranges
from stepscope.diagnose.views.frames import is_torchs
from stepscope.diagnose.views.patterns import Function, Patterns

PYTHON_MOST = 0.01
"""Share of the step that a Python function may take, data loading included. Paper (EROICA, 4.3)."""
COLLECTIVE_MOST = 0.3
"""The same of a collective. Paper (EROICA, 4.3)."""
KERNEL_MOST = 1.0
"""The same of a GPU kernel: a job should compute all the time. Paper (EROICA, 4.3)."""
COPY_MOST = 0.05
"""The same of a copy or memory operation on the critical path. Our choice."""
OPERATOR_MOST = 0.1
"""The same of an operator's time on the host while no kernel runs; where there are no kernels, the
host computes, and 1 is expected. Our choice."""
ALLOCATION_MOST = 0.01
"""The same of memory that is asked of the device, which PyTorch keeps from then on. Our choice."""
OWN_CODE = 0.02
"""Share of a step that ranks usually spend in one function of the user's own. Measured on real data
(the lab's healthy jobs, as in `detect.user_code`)."""
FRAMEWORK = 0.15
"""The same of one function of PyTorch: the overhead of eager execution in small models. Our
choice."""
OPERATORS = 0.1
"""The same of one operator on the host of a device. Our choice."""
SURE_BITS = 10.0
"""Evidence for a value a whole range away from a learned one. Statistics: one in a thousand."""

WHOLE = Range(0.0, 1.0)


@dataclass(frozen=True)
class Judge:
    """Judges functions of one window by what is expected of them."""

    patterns: Patterns
    learned: Expected

    def expected(self, function: Function) -> Ranges:
        """The learned range, or else the shipped one."""
        known = self.learned.of(key_of(function))
        return known or shipped(function, self.patterns.has_devices)

    def is_learned(self, function: Function) -> bool:
        return self.learned.of(key_of(function)) is not None

    def bits(self, function: Function, beta: float) -> float:
        """Evidence that a share is more than a function of this kind usually has."""
        if self.is_learned(function):
            high = self.expected(function).beta.high
            return SURE_BITS * (beta - high) / max(high, PYTHON_MOST)
        return unusual_bits(beta, ordinary(function))


def key_of(function: Function) -> Key:
    """A function without its line number, which changes whenever somebody edits the file."""
    file, colon, line = function.location.rpartition(":")
    return Key(function.kind, function.name, file if colon and line.isdigit() else
               function.location)  # fmt: skip


def shipped(function: Function, has_devices: bool) -> Ranges:
    """What is expected of a function that no baseline knows."""
    most = {
        "python": PYTHON_MOST,
        "collective": COLLECTIVE_MOST,
        "copy": COPY_MOST,
        "operator": OPERATOR_MOST if has_devices else 1.0,
    }.get(function.kind, KERNEL_MOST)
    most = ALLOCATION_MOST if function.allocates else most
    return Ranges(Range(0.0, most), WHOLE, WHOLE)


def ordinary(function: Function) -> float:
    """The share of a step that such a function ordinarily takes."""
    if function.kind == "copy" or function.loads:
        return ORDINARY
    if function.allocates:
        return OWN_CODE
    if function.kind == "operator":
        return OPERATORS
    return FRAMEWORK if is_torchs(function.frame) else OWN_CODE
