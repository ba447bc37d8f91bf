"""CUPTI's injector under sanitizers, a libcupti to go with it, and a process that uses both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from .compiling import HERE, LIBRARY, compiled, sources

_SONAME = "libcupti.so.13"


@dataclass(frozen=True)
class Injected:
    """What was compiled."""

    program: Path
    injector: Path
    cupti: Path

    @property
    def variables(self) -> Mapping[str, str]:
        """As `stepscope run` sets them, and where the process finds the libcupti.

        Every kernel is recorded, whatever that costs: tests launch thousands in an instant.
        """
        return {
            "STEPSCOPE_KERNEL_BUDGET": "1000",
            "CUDA_INJECTION64_PATH": str(self.injector),
            "LD_LIBRARY_PATH": str(self.cupti.parent),
        }


def injected(config: pytest.Config, sanitizer: Sequence[str]) -> Injected:
    """All three with the same sanitizer: it must see what each of them does."""
    library = (*LIBRARY, *sanitizer)
    soname = (*library, f"-Wl,-soname,{_SONAME}")
    return Injected(
        compiled(config, "cupti-driver", [HERE / "cupti_driver.cpp"], sanitizer),
        compiled(config, "injector.so", sources("cupti", "sender"), library),
        compiled(config, _SONAME, [HERE / "mock_cupti.cpp"], soname),
    )
