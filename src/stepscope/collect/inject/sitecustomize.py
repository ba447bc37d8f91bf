"""Runs at the start of every Python under `stepscope run`: its folder is first in PYTHONPATH.

It must cost nothing in processes that never import torch. It must work in environments where
stepscope is not installed (the package is loaded by path), and must not hide a `sitecustomize` that
was there before.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))


def _start_recording():
    if "stepscope" not in sys.modules:
        init = os.path.join(_PACKAGE, "__init__.py")
        spec = importlib.util.spec_from_file_location(
            "stepscope", init, submodule_search_locations=[_PACKAGE]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules["stepscope"] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules["stepscope"]  # leave no half-imported package behind
            raise
    from stepscope.collect import startup

    startup.after_torch_import()


class _Loader:
    """torch's own loader, which then runs our start-up."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        if _TorchFinder in sys.meta_path:
            sys.meta_path.remove(_TorchFinder)
        try:
            _start_recording()
        except Exception as error:  # we must not break the script: old Python, broken installation
            print(f"stepscope: cannot record this process: {error!r}", file=sys.stderr)


class _TorchFinder:
    """Waits in `sys.meta_path` for `import torch`, then removes itself.

    A search for torch's spec does not mean that torch is imported: transformers only searches.
    """

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torch":
            return None
        for finder in sys.meta_path:
            if finder is _TorchFinder or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


def _run_hidden_sitecustomize():
    elsewhere = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("STEPSCOPE_SOCKET"):
    sys.meta_path.insert(0, _TorchFinder)
_run_hidden_sitecustomize()
