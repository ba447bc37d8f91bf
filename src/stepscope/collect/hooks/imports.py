"""Calls back when another package's module has been imported; never imports one itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from stepscope.collect.guard import report

Then = Callable[[ModuleType], None]


def when_imported(name: str, then: Then) -> None:
    """Calls `then` with the module: now if it is imported, else as soon as it has been.

    Exception: a module that is being imported at this moment, further down the stack, is missed.
    """
    module = sys.modules.get(name)
    if module is None:
        _finder().wanted[name] = then
    elif not getattr(module.__spec__, "_initializing", False):
        _tell(then, module)


class _Finder:
    """The first finder in `sys.meta_path`; it asks the other finders where a module is."""

    def __init__(self) -> None:
        self.wanted: dict[str, Then] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.wanted:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    self._watch(name, spec)
                    return spec
        return None

    def _watch(self, name: str, spec: ModuleSpec) -> None:
        """The module stays on the list until it is imported: a search for it is not an import."""
        if spec.loader is not None:
            loader: Any = _Loader(spec.loader, lambda: self.wanted.pop(name, None))
            spec.loader = loader


class _Loader:
    """A module's own loader, which then calls us back."""

    def __init__(self, loader: Any, take: Callable[[], Then | None]) -> None:
        self._loader = loader
        self._take = take

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        then = self._take()
        if then is not None:
            _tell(then, module)


def _tell(then: Then, module: ModuleType) -> None:
    try:
        then(module)
    except Exception as error:  # noqa: BLE001 - an unknown version of the module
        report(f"hook for {module.__name__}", error)


def _finder() -> _Finder:
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            return finder
    sys.meta_path.insert(0, made := _Finder())
    return made
