"""Called once, right after `import torch` in a process that `stepscope run` started.

A hook that does not fit this version of torch is reported and left out; the others stay.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from stepscope.collect import identity, signals
from stepscope.collect.children import watch_children
from stepscope.collect.guard import report
from stepscope.collect.session import Session, fault_counter

session: Session | None = None
"""This process's recording, if `stepscope run` started it."""


def after_torch_import() -> None:
    """Installs all hooks. Never raises."""
    path = os.environ.get(identity.SOCKET_VARIABLE)
    if not path or session is not None:
        return
    try:
        _install(Session(path, identity.from_environment()))
    except Exception as error:  # noqa: BLE001 - the guest's promise
        report("start-up", error)


def _install(new: Session) -> None:
    global session  # noqa: PLW0603 - one recording per process, which `stepscope.phase` finds here
    from stepscope.collect.hooks import (
        backward,
        collectives,
        cuda,
        data_loader,
        frameworks,
        garbage,
        groups,
        kineto,
        modules,
    )
    from stepscope.collect.hooks import optimizer as optimizer_hook
    from stepscope.collect.hooks import profiler as profiler_hook

    session = new
    new.find_rank = groups.rank_and_world
    new.before_flush.append(fault_counter(new))
    _allow_sampling()
    _try("children", lambda: watch_children(os.environ[identity.SOCKET_VARIABLE]))
    registry = groups.GroupRegistry(new)
    watch = _try("collectives", lambda: collectives.install(new, registry))
    _try("device mesh", lambda: groups.install(registry))
    _try("data loader", lambda: data_loader.install(new))
    _try("optimizer", lambda: optimizer_hook.install(new))
    backwards = _try("backward", lambda: backward.install(new, watch))
    if backwards is not None:
        _try("pipelines", lambda: frameworks.install(new, backwards))
    _try("garbage collector", lambda: garbage.install(new))
    _try("profiler", profiler_hook.install)
    windows = _try("profiling windows", lambda: kineto.install(new))
    if windows is not None:
        _try("the signal to profile", lambda: signals.install(new, windows))
    _try("device times", lambda: cuda.install(new))
    _try("parts of models", lambda: modules.install(new))


def _try(what: str, install: Callable[[], Any]) -> Any:
    try:
        return install()
    except Exception as error:  # noqa: BLE001 - an unknown version of torch
        report(f"hook for {what}", error)
        return None


def _allow_sampling() -> None:
    """Lets py-spy, which is not our ancestor, read our stacks although Yama restricts it."""
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", encoding="ascii") as scope:  # noqa: PTH123
            restricted = scope.read().strip() == "1"
    except OSError:
        return
    if restricted:
        import ctypes

        pr_set_ptracer, any_process = 0x59616D61, ctypes.c_ulong(-1)
        ctypes.CDLL(None).prctl(pr_set_ptracer, any_process, 0, 0, 0)
