"""Kernels that move data between ranks, by their names."""

from __future__ import annotations

import re

_COMMUNICATION = re.compile(
    r"^(?!triton_[a-z]+_fused_|mem(?:cpy|set))(?:(?:send|recv)(?:-done)?(?:\.\d+)?$|.*(?:[nrxh]ccl|oneccl"
    r"|hcom|nvshmem|symmetric_memory::|userbuffers|cross_device_reduce"
    r"|all[-_]?reduce|reduce[-_]?scatter|all[-_]?gather|all[-_]?to[-_]?all|collective[-_]?permute"
    r"|(?:deep|hybrid)_ep::.*(?:dispatch|combine|barrier)))",
    re.I,
)
"""Of the libraries of NVIDIA, AMD, Intel and Huawei; of XLA (TPUs), for which `send.3` is one and
`scatter.3` is none; and of those that move data without a library and wait for the other ranks as
it does: torch's symmetric memory, vLLM, SGLang, Transformer Engine, DeepEP. Inductor names what it
fused after all that it came from, also after the operator whose result it reads."""
_LIBRARY = re.compile(r"[nrxh]ccl|hcom", re.I)
_NEAR = 64
"""Templates and arguments are not read."""


def is_communication(kernel: str) -> bool:
    """Whether a kernel moves data between ranks, and waits for them.

    >>> is_communication("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    True
    >>> is_communication("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(...)")
    True
    >>> is_communication("triton_poi_fused_all_reduce_add_3"), is_communication("sender")
    (False, False)
    """
    return _COMMUNICATION.search(kernel[:_NEAR]) is not None


def of_library(kernel: str) -> bool:
    """Whether a communication kernel is of a library that process groups call."""
    return _LIBRARY.search(kernel[:_NEAR]) is not None
