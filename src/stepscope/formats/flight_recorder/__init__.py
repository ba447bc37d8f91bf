"""Reads PyTorch Flight Recorder dumps: the last collectives that each rank recorded.

    files -> plain (bytes to plain data) -> dump (entries) -> groups -> assemble (Window)

Reads the output of `torch._C._distributed_c10d._dump_fr_trace`, `_dump_nccl_trace` and their JSON
variants, without torch and without executing anything from a pickle.
"""

from stepscope.formats.flight_recorder.reader import Dumps, read, recognise

__all__ = ["Dumps", "read", "recognise"]
