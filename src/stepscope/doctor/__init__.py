"""Checks what stepscope can record on this machine, and how to enable the rest.

The checks start nothing; they need neither a GPU nor a running processor.
"""

from stepscope.doctor.checks import examine
from stepscope.doctor.finding import Check, State
from stepscope.doctor.machine import Machine, this_machine

__all__ = ["Check", "Machine", "State", "examine", "this_machine"]
