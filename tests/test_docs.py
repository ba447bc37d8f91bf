"""The documentation keeps pace with the code: whatever a user can meet is written down."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache, reduce
from pathlib import Path
from typing import Any, get_args

import pytest
import typer.main

import stepscope
from stepscope.cli import build_app
from stepscope.diagnose.finding import Cause
from stepscope.diagnose.registry import DETECTORS, EXPLANATIONS, PUBLISHED, listed
from stepscope.trace import TABLES

ROOT = Path(__file__).parent.parent
SOURCE = Path(stepscope.__file__).parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
LONGEST_LINE = 100


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def everything() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


@cache
def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def commands() -> dict[str, Any]:
    """Every command by name, and the program itself."""
    program: Any = typer.main.get_command(build_app())
    return {"stepscope": program, **program.commands}


def spoken(name: str, text: str) -> bool:
    """Whether a word occurs by itself: `--job` is not said by `--jobs`."""
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None


def test_every_command_and_option_is_documented() -> None:
    text = everything()
    for name, command in commands().items():
        assert name == "stepscope" or f"stepscope {name}" in text
        options = [opt for p in command.params for opt in (*p.opts, *p.secondary_opts)]
        missing = [o for o in options if o.startswith("-") and not spoken(o, text)]
        assert not missing, f"stepscope {name}: {missing}"


def test_every_table_and_column_is_documented() -> None:
    text = read("docs/job-folder.md")
    for name, spec in TABLES.items():
        assert re.search(rf"^### {name}$|^\| `{name}` \|", text, re.M), f"no table {name}"
        missing = [column for column in spec.columns if f"`{column}`" not in text]
        assert not missing, f"table {name}: {missing}"


@pytest.mark.parametrize("name", [spec.name for spec in TABLES.values() if spec.optional])
def test_optional_columns_are_said_to_be_optional(name: str) -> None:
    section = read("docs/job-folder.md").split(f"\n### {name}\n")[1].split("\n### ")[0]
    for column in TABLES[name].optional:
        assert re.search(rf"^\| .*`{column}`.* \| \w+, optional \|", section, re.M), column


def test_every_metric_that_is_written_is_documented() -> None:
    text = read("docs/job-folder.md")
    sources = (
        "processor/hardware/sampler.py",
        "processor/sampling/watcher.py",
        "trace/names.py",
        "collect/session.py",
    )
    code = "\n".join((SOURCE / name).read_text(encoding="utf-8") for name in sources)
    samples = re.findall(r'(?:yield -1|watched\.rank|\(rank), "(\w+)"', code)
    ours = re.findall(r'"(stepscope_(?:\w+_)?(?:cpu|cpu_ns|faults))"', code)
    nvml = (SOURCE / "processor/hardware/nvml.py").read_text(encoding="utf-8")
    named = re.findall(r'^    "(\w+)": ', nvml, re.M) + re.findall(r'f"(\w+)\.gpu\{', code)
    gpu = [f"{name}.gpu<N>" for name in named]
    assert len(samples) > 5 and len(ours) > 2 and len(gpu) > 2, "the code is written otherwise now"
    ports = (SOURCE / "processor/hardware/ports.py").read_text(encoding="utf-8")
    gpu += [f"{name}.<adapter>" for name in re.findall(r'"(nic_\w+)', ports)]
    assert not [name for name in {*samples, *ours, *gpu} if f"`{name}`" not in text]


def test_every_method_has_a_page_that_the_overview_names() -> None:
    overview = read("docs/methods/README.md")
    methods = [one.name for one in (*DETECTORS, *PUBLISHED)]
    methods += [one.name for one in EXPLANATIONS]
    assert not [name for name in methods if f"[`{name}`](" not in overview]
    pages = {path.name for path in (ROOT / "docs/methods").glob("*.md")} - {"README.md"}
    assert not [name for name in pages if f"({name}" not in overview]


def test_the_overview_has_the_order_and_the_papers_that_the_program_shows() -> None:
    rows = re.findall(r"^\| \[`([\w-]+)`\]\(.* \| (\S+) \|$", read("docs/methods/README.md"), re.M)
    shown = [(one.name, one.paper or "\u2013") for one in listed() if "run by default" in one.runs]
    assert rows[: len(shown)] == shown


def test_every_variable_of_ours_is_documented() -> None:
    text = read("docs/operations.md")
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    variables = set(re.findall(r'"(STEPSCOPE_[A-Z]+)"', code))
    assert len(variables) > 4
    assert not [name for name in variables if f"`{name}`" not in text]


def test_every_cause_is_documented() -> None:
    text = read("docs/diagnosis-json.md")
    assert not [cause for cause in get_args(Cause) if f"| `{cause}` |" not in text]


def links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            if "://" not in target:
                yield page, target


@cache
def anchors(page: Path) -> set[str]:
    """What headings can be linked to, as Markdown renderers name them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_internal_links_lead_somewhere() -> None:
    for page, link in links():
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def resolve(name: str) -> Any:
    """What a dotted name below `stepscope`, or below its `diagnose`, stands for."""
    parts = name.split(".")
    if (SOURCE / "diagnose" / parts[0]).exists() or (
        SOURCE / "diagnose" / f"{parts[0]}.py"
    ).exists():
        parts.insert(0, "diagnose")
    for cut in range(len(parts), 0, -1):
        path = SOURCE.joinpath(*parts[:cut])
        files = (path.with_suffix(".py"), path.with_suffix(".pyi"), path / "__init__.py")
        if any(file.exists() for file in files):
            module = importlib.import_module(".".join(["stepscope", *parts[:cut]]))
            return reduce(getattr, parts[cut:], module)
    raise AttributeError(f"no module of ours begins {name}")


def test_the_journey_names_what_exists() -> None:
    rooms = "cli|collect|diagnose|processor|report|store|wire|window"
    names = re.findall(rf"`((?:{rooms})\.[\w.]+)`", prose(ROOT / "docs/journey.md"))
    assert len(names) > 30
    for name in names:
        assert resolve(name) is not None


@cache
def constants() -> list[tuple[str, str, str]]:
    row = re.compile(r"^\| `([\w.]+\.[A-Z_]+)` \| ([\d.e-]+) \|", re.M)
    return [(page.name, name, value) for page in PAGES for name, value in row.findall(prose(page))]


@pytest.mark.parametrize(("page", "name", "value"), constants())
def test_a_constant_has_the_value_its_page_says(page: str, name: str, value: str) -> None:
    assert float(resolve(name)) == pytest.approx(float(value)), page


def test_each_method_page_lists_its_constants_and_limits() -> None:
    for page in (ROOT / "docs/methods").glob("*.md"):
        if page.name != "README.md":
            assert any(name == page.name for name, _, _ in constants()), page.name
            assert "**Limits" in page.read_text(encoding="utf-8"), page.name


def test_lines_fit() -> None:
    for page in PAGES:
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            # these hold what programs printed
            pasted = page.name in ("README.md", "measurements.md", "evaluation.md")
            assert pasted or len(line) <= LONGEST_LINE, f"{page.name}:{number}"
