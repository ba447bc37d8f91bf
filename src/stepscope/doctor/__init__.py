"""What can be collected on this machine, why the rest cannot, and what to type.

It looks, and starts nothing: neither a GPU nor a processor is needed.
"""

from stepscope.doctor.checks import examine
from stepscope.doctor.finding import Check, State
from stepscope.doctor.machine import Machine, this_machine

__all__ = ["Check", "Machine", "State", "examine", "this_machine"]
