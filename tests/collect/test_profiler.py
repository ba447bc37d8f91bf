"""CUPTI is torch.profiler's while it is at work."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from stepscope.collect.hooks import profiler


class Diary:
    """A torch.autograd.profiler and a library that write down what is called."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.fails = False
        says = {"_prepare_profiler": "prepare", "_enable_profiler": "enable"}
        self.module = SimpleNamespace(**{name: self.says(word) for name, word in says.items()})
        self.module._disable_profiler = self.says("disable")
        self.library = SimpleNamespace(
            stepscope_cupti_pause=self.says("pause"), stepscope_cupti_resume=self.says("resume")
        )

    def says(self, word: str) -> Callable[[], str]:
        def call() -> str:
            self.said.append(word)
            if self.fails and word == "prepare":
                raise RuntimeError("no profiler")
            return word

        return call

    def install(self) -> None:
        profiler.wrap(self.module, lambda: self.library)


@pytest.fixture
def diary() -> Diary:
    return Diary()


def test_we_step_aside_before_it_begins_and_come_back_after(diary: Diary) -> None:
    diary.install()
    diary.module._prepare_profiler()
    diary.module._enable_profiler()
    assert diary.module._disable_profiler() == "disable"
    assert diary.said == ["pause", "prepare", "pause", "enable", "disable", "resume"]


def test_we_come_back_where_it_fails(diary: Diary) -> None:
    diary.fails = True
    diary.install()
    with pytest.raises(RuntimeError):
        diary.module._prepare_profiler()
    assert diary.said == ["pause", "prepare", "resume"]


def test_a_library_that_is_gone_is_no_reason_to_fail(
    diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STEPSCOPE_RAISE", raising=False)

    def load() -> profiler.Tracer:
        raise OSError("no such file")

    profiler.wrap(diary.module, load)
    assert diary.module._prepare_profiler() == "prepare"


def test_torchs_own_calls_are_those_that_are_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    real = pytest.importorskip("torch.autograd.profiler")
    names = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
    for name in names:
        monkeypatch.setattr(real, name, getattr(real, name))  # put back afterwards
    before = [getattr(real, name) for name in names]
    profiler.install()
    assert [getattr(real, name) for name in names] == before
    monkeypatch.setenv(profiler.INJECTION_VARIABLE, f"/somewhere/{profiler.LIBRARY}")
    profiler.install()
    assert all(
        getattr(real, name).__wrapped__ is own for name, own in zip(names, before, strict=True)
    )
