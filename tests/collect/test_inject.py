"""The start-up hook: there at `import torch`, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import stepscope

INJECT = Path(stepscope.__file__).parent / "collect" / "inject"
_OURS_LOADED = "import sys; print([m for m in sys.modules if m.startswith('stepscope')])"


@pytest.fixture
def extra(tmp_path: Path) -> Path:
    """A folder of the user's, behind ours in PYTHONPATH, with something called torch."""
    torch = tmp_path / "extra" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("answer = 42\n")
    (torch / "data.txt").write_text("of the package")
    return torch.parent


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """The interpreter of an environment in which nothing is installed."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    return str(tmp_path / "bare" / "bin" / "python")


def _python(
    code: str,
    extra: Path,
    *arguments: str,
    python: str = sys.executable,
    socket: str | None = "/nowhere/socket",
) -> subprocess.CompletedProcess[str]:
    """A Python under `stepscope run`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("STEPSCOPE_", "PYTHON"))}
    env["PYTHONPATH"] = os.pathsep.join([str(INJECT), str(extra)])
    if socket is not None:
        env["STEPSCOPE_SOCKET"] = socket
    return subprocess.run(
        [python, *arguments, "-c", code], env=env, capture_output=True, text=True, check=False
    )


def test_a_process_without_torch_imports_nothing_of_ours(extra: Path) -> None:
    done = _python(_OURS_LOADED, extra)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_process_that_nobody_records_imports_nothing_of_ours(extra: Path) -> None:
    done = _python("import torch; " + _OURS_LOADED, extra, socket=None)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_an_isolated_interpreter_is_left_alone(extra: Path) -> None:
    assert _python(_OURS_LOADED, extra, "-I").stdout == "[]\n"


_RECORDED = """
import torch
from stepscope.collect import startup
print(torch.answer, startup.session is not None)
"""


def test_a_torch_that_is_none_of_those_we_know(extra: Path) -> None:
    """Every hook that does not fit says so on one line; the script runs on."""
    done = _python(_RECORDED, extra)

    assert done.stdout == "42 True\n"
    told = done.stderr.splitlines()
    assert len(told) == 6
    assert all(line.startswith("stepscope: internal fault in hook for ") for line in told)


def test_an_environment_without_stepscope(extra: Path, bare: str) -> None:
    nothing = "import importlib.util as u; print(u.find_spec('stepscope'), u.find_spec('numpy'))"

    assert _python(nothing, extra, python=bare).stdout == "None None\n"
    done = _python(_RECORDED + "print(torch.__file__, startup.__file__)", extra, python=bare)
    assert done.stdout.splitlines() == [
        "42 True",
        f"{extra / 'torch' / '__init__.py'} {INJECT.parent / 'startup.py'}",
    ]


def test_asking_where_torch_is_does_not_count_as_importing_it(extra: Path) -> None:
    """As transformers and accelerate do before they import it."""
    ask = "from importlib.util import find_spec\nassert find_spec('torch') and find_spec('torch')\n"
    done = _python(ask + _RECORDED, extra)
    assert done.stdout == "42 True\n"


def test_torch_looks_as_if_nobody_had_been_there(extra: Path) -> None:
    done = _python(
        "import pkgutil, sys, torch, importlib.resources as r\n"
        "print(type(torch.__spec__.loader).__name__, type(torch.__loader__).__name__)\n"
        "print(pkgutil.get_data('torch', 'data.txt').decode())\n"
        "print((r.files('torch') / 'data.txt').read_text())\n"
        "print([f for f in sys.meta_path if 'Torch' in repr(f)])\n",
        extra,
    )
    assert done.stdout.splitlines() == [
        "SourceFileLoader SourceFileLoader", "of the package", "of the package", "[]",
    ]  # fmt: skip


def test_no_torch_at_all(bare: str, tmp_path: Path) -> None:
    code = "try:\n    import torch\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    assert _python(code, tmp_path, python=bare).stdout == "No module named 'torch'\n"


def test_a_torch_that_fails_to_import_fails_as_without_us(extra: Path) -> None:
    (extra / "torch" / "__init__.py").write_text(
        "import os\nif 'READY' not in os.environ:\n    raise ImportError('no driver')\n"
        "answer = 42\n"
    )
    code = "import os\ntry:\n    import torch\nexcept ImportError as error:\n    print(error)\n"
    done = _python(code + "os.environ['READY'] = '1'\n" + _RECORDED, extra)
    assert done.stdout == "no driver\n42 True\n"


def test_the_users_own_sitecustomize_runs(extra: Path) -> None:
    (extra / "sitecustomize.py").write_text("import builtins; builtins.greeting = 'hello'\n")
    code = "import sitecustomize; print(greeting, sitecustomize.__file__)"
    assert _python(code, extra).stdout == f"hello {extra / 'sitecustomize.py'}\n"


def test_the_users_own_sitecustomize_may_fail(extra: Path) -> None:
    (extra / "sitecustomize.py").write_text("raise ValueError('the user')\n")
    done = _python(_RECORDED, extra)

    assert done.stdout == "42 True\n"
    assert "ValueError: the user" in done.stderr


def test_our_installation_may_be_broken(extra: Path, tmp_path: Path) -> None:
    """An interpreter too old for our code, a half-deleted folder: one line, and training runs."""
    broken = tmp_path / "broken" / "collect" / "inject"
    broken.mkdir(parents=True)
    (broken / "sitecustomize.py").write_bytes((INJECT / "sitecustomize.py").read_bytes())
    (tmp_path / "broken" / "__init__.py").write_text("import no_such_module\n")
    env = {**os.environ, "PYTHONPATH": f"{broken}{os.pathsep}{extra}", "STEPSCOPE_SOCKET": "/x"}
    code = "import torch, sys; print(torch.answer, 'stepscope' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )

    assert done.stdout == "42 False\n"
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("stepscope: cannot record this process: ModuleNotFoundError")
