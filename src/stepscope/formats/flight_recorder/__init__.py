"""PyTorch Flight Recorder dumps: what each rank's recorder of collectives last held.

    files -> plain (bytes to plain data) -> dump (entries) -> groups -> assemble (Window)

Reads what `torch._C._distributed_c10d._dump_fr_trace`, `_dump_nccl_trace` and their JSON twins
write, as pickles or JSON, without torch and without executing anything in them.
"""

from stepscope.formats.flight_recorder.reader import Dumps, read, recognise

__all__ = ["Dumps", "read", "recognise"]
