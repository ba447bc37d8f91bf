"""The native part of the build; everything else stands in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

NATIVE = Path("native")
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow")

setup(
    ext_modules=[
        Extension(
            "stepscope._native",
            sources=sorted(map(str, NATIVE.glob("*/*.cpp"))),
            depends=sorted(map(str, NATIVE.glob("*/*.hpp"))),
            language="c++",
            extra_compile_args=[
                "-std=c++17",
                "-O3",
                "-g0",
                "-fvisibility=hidden",
                "-Wall",
                "-Wextra",
            ],
            # without Python's headers all but the reading of traces works, and says so
            optional=True,
            # one binary for every Python from 3.10 on
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
