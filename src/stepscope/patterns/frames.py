"""Names of Python functions: where they are defined, and whose code they are.

Two forms: `data.py(12): load` as torch.profiler writes it, `load (data.py:12)` as table `stacks`
has it. Both come from other programs, so anything may be missing.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import lru_cache

LONGEST_NAME = 200
"""Longest function, location or caller: names of C++ templates have thousands of letters."""
LOADER_WAIT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
"""PyTorch's name of the call in which the training thread waits for loader workers."""
FRAMEWORKS = frozenset((
    "accelerate", "apex", "composer", "datasets", "deepspeed", "fairscale", "flash_attn",
    "functorch", "ignite", "lightning", "lightning_fabric", "megatron", "numpy", "pandas", "peft",
    "pyarrow", "pytorch_lightning", "ray", "scipy", "stepscope", "timm", "torch", "torchao",
    "torchaudio", "torchdata", "torchgen", "torchrec", "torchtitan", "torchvision", "tqdm",
    "transformer_engine", "transformers", "triton", "webdataset", "xformers",
))  # fmt: skip
"""Packages that training scripts import: torch.profiler strips the folder that they are in, so an
installed package looks like a module of the script. Our choice."""

_OURS = "stepscope/collect/"
_FOLDERS = ("site-packages/", "dist-packages/", "/lib/python3", _OURS)
_TRACED = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$", re.S)
_STACKED = re.compile(r"^(?P<function>.+) \((?P<file>.+):(?P<line>\d+)\)$", re.S)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_INSTANCE = re.compile(r"^(nn\.Module: .+)_\d+$", re.S)
_BUILTIN = "<built-in"
_LOADER_FILE = "torch/utils/data/dataloader.py"
_LOADER_NEXT = "__next__"
_LOADER_FUNCTION = "_try_get_data"


@dataclass(frozen=True)
class Frame:
    """A Python function; `file` is empty if it has no source."""

    function: str
    file: str = ""
    line: int = 0

    @property
    def location(self) -> str | None:
        return f"{self.file[-LONGEST_NAME:]}:{self.line}" if self.file else None

    @property
    def as_caller(self) -> str:
        """`file.py:45 name`."""
        return f"{self.location} {self.function}" if self.file else self.function

    @property
    def is_own(self) -> bool:
        """Whether it is the user's own code: not Python's, not of an installed package."""
        return bool(self.file) and is_own(self.file)

    @property
    def is_ours(self) -> bool:
        """Whether it is what stepscope runs in the training process."""
        return _OURS in self.file

    @property
    def is_builtin(self) -> bool:
        """Whether it is a function in C."""
        return self.function.startswith(_BUILTIN)

    @property
    def loads(self) -> bool:
        """Whether below it the next batch is loaded, or waited for."""
        return self.function == _LOADER_NEXT and self.file.endswith(_LOADER_FILE)

    @property
    def waits_for_loader(self) -> bool:
        """Whether below it the training thread waits for its loader workers."""
        return self.function == _LOADER_FUNCTION and self.file.endswith(_LOADER_FILE)


def traced(name: str) -> Frame:
    """A function as torch.profiler names it, without addresses and numbers of instances.

    >>> traced("torch/nn/functional.py(2282): linear")
    Frame(function='linear', file='torch/nn/functional.py', line=2282)
    >>> traced("<built-in method append of list object at 0x7f5fc502a680>").function
    '<built-in method append of list object>'
    >>> traced("nn.Module: Linear_12").function
    'nn.Module: Linear'
    """
    name = name[: 4 * LONGEST_NAME]
    parts = _TRACED.match(name)
    if parts is None:
        return Frame(_INSTANCE.sub(r"\1", _ADDRESS.sub("", name))[:LONGEST_NAME])
    return _frame(parts)


def stacked(text: str) -> Frame:
    """A frame of table `stacks`.

    >>> stacked("load (data.py:12)")
    Frame(function='load', file='data.py', line=12)
    """
    parts = _STACKED.match(text[: 4 * LONGEST_NAME])
    return Frame(text[:LONGEST_NAME]) if parts is None else _frame(parts)


def _frame(parts: re.Match[str]) -> Frame:
    return Frame(parts["function"][:LONGEST_NAME], parts["file"], int(parts["line"][:9]))


@lru_cache(1 << 12)
def is_own(file: str) -> bool:
    """Whether a file is the user's own.

    >>> [is_own(f) for f in ("train.py", "torch/nn/functional.py", "/usr/lib/python3.11/queue.py")]
    [True, False, False]
    """
    if file.startswith("<") or any(folder in file for folder in _FOLDERS):
        return False
    top = file.partition("/")[0].removesuffix(".py")
    return top not in FRAMEWORKS and top not in sys.stdlib_module_names
