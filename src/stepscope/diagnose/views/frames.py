"""What a frame of a stack shows by its name and file: who wrote the function, and what it does.

A frame is `function (file:line)`, a function the same without the line.
Cannot see: what a function is for whose name and file do not say it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

WAITING = (
    "wait", "synchronize", "barrier", "all_reduce", "allreduce", "all_gather", "reduce_scatter",
    "broadcast", "recv", "send", "_wait_for_tstate_lock", "_wait_batch_p2p", "item",
)  # fmt: skip
"""Functions that wait for ranks or devices, by their names: `item` waits for its device."""
LOADER = "dataloader"
TIMED = "(dynamo_timed)"
"""Ends PyTorch's annotation of each part of its compiler (`torch/_dynamo/utils.py`)."""
COMPILES = ("_dynamo", "_inductor", "triton", "torch/compiler", "cutlass", TIMED)
"""Paths of just-in-time compilers; elsewhere a compiling function has a name that begins so."""
COMPILING = (
    "torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py",
    "torch/_inductor/async_compile.py", "triton/compiler/", "torch/utils/cpp_extension.py",
)  # fmt: skip
"""Paths through which compilers are entered and code that was compiled is not: that one passes
other parts of dynamo and inductor each time it runs."""
NEVER_COMPILED = "dynamo_disable"
"""In the name of the function around what dynamo is not to look at: every call of FSDP."""
RUNS_COMPILED = "run "
"""In `compile_fx.py` of older torch, what calls compiled code."""
PATTERNS = ("/re.py", "/re/", "sre_compile")
"""Paths in which `compile` means regular expressions."""
_WORD = re.compile("[a-z]+")
_IN_C = re.compile(r"<built-in (?:method|function) (?P<name>\w+)(?: of (?P<owner>.*))?>")
_SOCKET = "socket"
"""In the names of objects that talk to other programs than ranks."""
OURS = "stepscope/collect/"
"""Part of the path of what stepscope itself runs in a training process. It is never the culprit: it
wraps calls of the user and of torch, and its own cost is measured elsewhere."""
INSTALLED = ("/lib/python3", "torch/")
"""Paths of code that is not the user's own."""
MODULES = "torch/nn/modules/"
DEVICES = "torch/cuda/"
"""Path of the functions with which hosts wait for their GPUs."""
TRAINING = (
    "torch/nn/", "torch/autograd/", "torch/optim/", "torch/distributed/", "torch/_tensor.py",
    "torch/utils/data/", "torch/_dynamo/", "torch/amp/", "stepscope/collect/", LOADER,
)  # fmt: skip
"""Paths of what a training step is made of; other parts of PyTorch are called by users."""
PASSES = ("torch/autograd/", "torch/optim/")
"""Paths of what only the thread calls that trains; others load data or communicate."""


def function_of(frame: str) -> str:
    """A frame without its line number: `work (train.py:12)` becomes `work (train.py)`."""
    head, colon, line = frame.rpartition(":")
    return f"{head})" if colon and line.rstrip(")").isdigit() else frame


def awaits_device(frame: str) -> bool:
    """Whether a host waits in it for its GPU, which works meanwhile."""
    return DEVICES in frame and waits(frame)


def waits(frame: str) -> bool:
    """Whether a frame is a function in which ranks wait for one another.

    >>> waits("wait (torch/distributed/work.py:31)"), waits("<built-in method wait of Work object>")
    (True, True)
    >>> waits("<built-in method recv of _socket.socket object>")
    False
    """
    in_c = _IN_C.match(frame)
    if in_c is not None:
        return in_c["name"] in WAITING and _SOCKET not in (in_c["owner"] or "")
    name = frame.split(" ", 1)[0].rsplit(".", 1)[-1]
    return name in WAITING or "distributed_c10d" in frame


def is_torchs(function: str) -> bool:
    """Whether a function is part of PyTorch."""
    return "/torch/" in function or "(torch/" in function


def is_ours(function: str) -> bool:
    """Whether a function is what stepscope runs in a training process.

    >>> is_ours("end (stepscope/collect/hooks/kineto.py:139)"), is_ours("collect (train.py:3)")
    (True, False)
    """
    return OURS in function


def is_users(function: str) -> bool:
    """Whether a function is neither PyTorch's nor of another installed package."""
    return not any(path in function for path in INSTALLED)


def is_theirs(function: str) -> bool:
    """Whether a function is a user's own, and none of ours."""
    return is_users(function) and not is_ours(function)


def loads_data(function: str) -> bool:
    """Whether a function is PyTorch's own data loading, where a rank waits for its batch."""
    return LOADER in function or "torch/utils/data/" in function


def is_librarys(function: str) -> bool:
    """Whether a function belongs to Python's standard library.

    >>> is_librarys("get (/usr/lib/python3.11/queue.py)")
    True
    >>> is_librarys("step (/usr/lib/python3.11/site-packages/torch/optim/adam.py)")
    False
    """
    return ("/lib/python3" in function and "-packages/" not in function) or "(<frozen" in function


def is_own(function: str) -> bool:
    """Whether a function belongs to no library at all."""
    return is_users(function) and not is_librarys(function)


def users_frame(stack: Sequence[str]) -> str | None:
    """The innermost frame of a user's own code, else the innermost of all.

    >>> users_frame(("load (train.py:7)", "get (/usr/lib/python3.11/queue.py:171)"))
    'load (train.py:7)'
    """
    frames = [frame for frame in reversed(stack) if not is_ours(frame)]
    return next((one for one in frames if is_users(one)), frames[0] if frames else None)


def compiles(function: str) -> bool:
    """Whether the function belongs to a just-in-time compiler.

    >>> compiles("convert_frame (torch/_dynamo/convert_frame.py)")
    True
    >>> compiles("_dynamo_disable.<locals>.wrapper (torch/distributed/fsdp/_fsdp_common.py)")
    False
    """
    if NEVER_COMPILED in function:
        return False
    name = function.split(" ", 1)[0].rsplit(".", 1)[-1].lstrip("_")
    return any(word in function for word in COMPILES) or (
        name.startswith("compile") and not any(word in function for word in PATTERNS)
    )


def is_compiling(function: str) -> bool:
    """Whether a compiler is at work in whatever this function calls.

    It may do so in other processes, for which the innermost functions wait.

    >>> is_compiling("compile_fx_inner (/lib/torch/_inductor/compile_fx.py)")
    True
    >>> is_compiling("compile_wrapper (/lib/torch/_dynamo/eval_frame.py)")
    False
    """
    return any(path in function for path in COMPILING) and not function.startswith(RUNS_COMPILED)


def collects(function: str) -> bool:
    """Whether the function is named after garbage collection: `gc.collect`, `gc_collect`.

    >>> collects("gc_collect (memory.py)"), collects("collect (gc_utils.py)")
    (True, True)
    >>> collects("<built-in function collect>"), collects("collect (metrics.py)")
    (True, False)
    """
    in_c = _IN_C.match(function)
    if in_c is not None:
        return in_c["name"] == "collect" and in_c["owner"] is None
    name, _, where = function.partition(" ")
    words = _WORD.findall(name.lower()), _WORD.findall(where.lower())
    collecting = any(word.startswith("collect") for word in words[0])
    return (collecting and "gc" in (*words[0], *words[1])) or "garbage" in words[0]
