"""The commands: `list`, `run` (record, state the truth, diagnose, score) and `score` (again)."""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from pathlib import Path

from lab import record, scenarios, shapes, truth
from lab.hosts import NotPermitted, check
from lab.scenarios import Case


def main(words: list[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    command: int = arguments.command(arguments)
    return command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description=(__doc__ or "").strip())
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="record, diagnose and score")
    run.set_defaults(command=_run)
    run.add_argument("names", nargs="*", help="scenarios, with wildcards; default: all")
    run.add_argument("--seed", type=int, default=0, help="the first seed")
    run.add_argument("--seeds", type=int, default=1, help="how many")
    run.add_argument("--out", type=Path, default=Path("stepscope-runs/lab"))
    run.add_argument("--healthy", action="store_true", help="healthy jobs of every shape instead")
    run.add_argument("--held-out", action="store_true", help="the third kept for the end instead")
    run.add_argument("--missing", action="store_true", help="only what is not in the folder yet")
    return parser


def chosen(arguments: argparse.Namespace) -> list[Case]:
    """The cases that the command line asks for, seed by seed."""
    if arguments.healthy:
        seeds = range(arguments.seed, arguments.seed + arguments.seeds)
        every = [scenarios.healthy(kind, seed) for seed in seeds for kind in shapes.KINDS]
        return [c for c in every if _matches(c.scenario, arguments.names)]
    return [
        case
        for seed in range(arguments.seed, arguments.seed + arguments.seeds)
        for name in scenarios.names()
        if _matches(name, arguments.names)
        for case in [scenarios.case(name, seed)]
        if case.held_out == arguments.held_out
    ]


def _matches(name: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _run(arguments: argparse.Namespace) -> int:
    try:
        check()
    except NotPermitted as why:
        print(f"skipped: hosts cannot be made here: {why}")
        return 0
    cases = chosen(arguments)
    failed = 0
    for number, case in enumerate(cases, 1):
        done = (arguments.out / case.name / "truth.json").exists()
        if not (arguments.missing and done):
            print(f"[{number}/{len(cases)}] {case.name}: ", end="", flush=True)
            failed += not _record(case, arguments.out)
    return 1 if failed else 0


def _record(case: Case, out: Path) -> bool:
    """Records a case, after its twin if that is needed and not there; whether it worked."""
    began = time.monotonic()
    try:
        twin = scenarios.twin(case) if truth.needs_twin(case) else None
        if twin is not None and not (out / twin.name / "truth.json").exists():
            truth.write(twin, record.record(twin, out), None)
        folder = record.record(case, out)
        found = truth.write(case, folder, out / twin.name if twin else None)
    except (record.Failed, NotPermitted) as why:
        print(f"FAILED: {why}")
        return False
    print(f"{time.monotonic() - began:.0f} s, {_cost_of(found)}")
    sys.stdout.flush()
    return True


def _cost_of(found: dict[str, object]) -> str:
    if "lost" not in found:
        return f"{found['steps']} steps"
    small = "" if found["worth"] else ", TOO LITTLE TO COUNT"
    return f"{found['steps']} steps, fault costs {float(str(found['lost'])):.0%}{small}"
