"""The native part of the build; everything else stands in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("native")
FLAGS = ["-std=c++17", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra"]
LIBRARIES = {
    "libstepscope_cupti": ("cupti", "sender"),
    "libnccl-profiler-stepscope": ("nccl", "sender"),
    "libstepscope_pm": ("pm",),
    "libstepscope_calls": ("calls",),
}
"""What training processes and the processor's samplers load beside Python, and the folders it is
written in, its own first."""


def sources(*folders: str) -> list[str]:
    return sorted(str(path) for folder in folders for path in (NATIVE / folder).glob("*.cpp"))


def headers(*folders: str) -> list[str]:
    kinds = ("*.hpp", "*.map")
    return sorted(
        str(path) for one in folders for kind in kinds for path in (NATIVE / one).glob(kind)
    )


def module() -> Extension:
    """What Python imports. Without Python's headers all but the reading of traces works, and says
    so; with them, one binary for every Python from 3.10 on."""
    return Extension(
        "stepscope._native",
        sources=sources("binding", "src"),
        depends=headers("binding", "src"),
        language="c++",
        extra_compile_args=[*FLAGS, "-O3"],
        optional=True,
        py_limited_api=True,
    )


def library(name: str, *folders: str) -> Extension:
    """A plain shared library. `exports.map` keeps all but its entry points to itself: other
    libraries of the process have a C++ library of their own."""
    exports = NATIVE / folders[0] / "exports.map"
    return Extension(
        f"stepscope.lib.{name}",
        sources=sources(*folders),
        depends=headers(*folders),
        language="c++",
        extra_compile_args=[*FLAGS, "-O2", "-pthread"],
        extra_link_args=[
            f"-Wl,--version-script={exports}", "-Wl,-z,nodelete", "-Wl,-z,defs", "-pthread", "-ldl",
        ],
        optional=True,
    )  # fmt: skip


class Build(build_ext):
    """Plain libraries have plain names."""

    def get_ext_filename(self, fullname: str) -> str:
        name = fullname.rpartition(".")[2]
        if name in LIBRARIES:
            return str(Path(*fullname.split("."))) + ".so"
        return str(super().get_ext_filename(fullname))


setup(
    ext_modules=[
        module(),
        *(library(name, *folders) for name, folders in LIBRARIES.items() if sources(folders[0])),
    ],
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
