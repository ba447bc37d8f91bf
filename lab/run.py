"""The commands: `list`, `run` (record, state the truth, diagnose, score) and `score` (again)."""

from __future__ import annotations

import argparse
import fnmatch
import json
import shlex
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from lab import lifted, live, record, scenarios, table, truth
from lab.hosts import NotPermittedError, check
from lab.scenarios import Case
from lab.score import Score, judge, judge_each
from lab.table import Result

DIAGNOSE = f"{sys.executable} -m stepscope.cli diagnose {{source}} --json"


def main(words: list[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    try:
        status: int = arguments.command(arguments)
    except KeyboardInterrupt:
        print("\nstopped; what was recorded stays")
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab", description=(__doc__ or "").strip())
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="record, diagnose and score")
    run.set_defaults(command=_run)
    run.add_argument("names", nargs="*", help="scenarios, with wildcards; default: all")
    run.add_argument("--seed", type=int, default=0, help="the first seed")
    run.add_argument("--seeds", type=int, default=1, help="how many")
    run.add_argument("--family", action="append", default=[], help="of faults: compute, hang, …")
    run.add_argument("--out", type=Path, default=Path("stepscope-runs/lab"))
    run.add_argument("--held-out", action="store_true", help="the third kept for the end instead")
    run.add_argument("--missing", action="store_true", help="only what is not in the folder yet")
    run.add_argument("--run", default=DIAGNOSE, help="a command with {source} in it")
    run.add_argument("--record-only", action="store_true", help="do not diagnose")
    run.add_argument("--live", action="store_true",
                     help="follow each job, and tell how soon its fault was named")  # fmt: skip
    score = commands.add_parser("score", help="diagnose recorded jobs again, and score")
    score.set_defaults(command=_score)
    score.add_argument("folder", type=Path, help="where they were recorded")
    score.add_argument("names", nargs="*", help="scenarios, with wildcards; default: all")
    score.add_argument("--family", action="append", default=[], help="of faults: compute, hang, …")
    score.add_argument("--run", default=DIAGNOSE, help="a command with {source} in it")
    score.add_argument("--held-out", action="store_true", help="the third kept for the end instead")
    score.add_argument("--everything", action="store_true", help="both")
    score.add_argument("--write", type=Path, help="the table, to this file")
    score.add_argument("--labelled", type=Path, help="every verdict and whether it is right, to "
                       "this file, for `stepscope evaluate --fit-confidence`")  # fmt: skip
    listing = commands.add_parser("list", help="names of the scenarios")
    listing.set_defaults(command=_list)
    return parser


def _list(arguments: argparse.Namespace) -> int:
    print("\n".join(scenarios.names()))
    return 0


def chosen(arguments: argparse.Namespace) -> list[Case]:
    """The cases that the command line asks for, seed by seed."""
    return [
        case
        for seed in range(arguments.seed, arguments.seed + arguments.seeds)
        for name in chosen_names(arguments.names)
        for case in [scenarios.case(name, seed)]
        if case.held_out == arguments.held_out
        and (not arguments.family or case.family in arguments.family)
    ]


def chosen_names(patterns: list[str]) -> list[str]:
    """The scenarios that match one of the patterns; without patterns all."""
    return [name for name in scenarios.names() if _matches(name, patterns)]


def _matches(name: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _run(arguments: argparse.Namespace) -> int:
    try:
        check()
    except NotPermittedError as why:
        print(f"skipped: hosts cannot be made here: {why}")
        return 0
    cases = chosen(arguments)
    if not cases:
        print("no such case, or it is held out (--held-out); see python -m lab list")
    results: list[Result] = []
    failed = 0
    for number, case in enumerate(cases, 1):
        folder = arguments.out / case.name
        if not (arguments.missing and (folder / "truth.json").exists()):
            print(f"[{number}/{len(cases)}] {case.name}: ", end="", flush=True)
            if not _record(case, arguments.out, arguments.live):
                failed += 1
                continue
        if arguments.live and case.faults:
            print(_named(folder), flush=True)
        if not arguments.record_only:
            results.append(_scored(folder, arguments.run))
            print(table.row(results[-1]), flush=True)
    if results:
        print(f"\n{table.totals(results)}")
    return 1 if failed else 0


def _named(folder: Path) -> str:
    """How soon the fault was named while the job ran."""
    seconds = live.named_after_s(folder, json.loads((folder / "truth.json").read_text()))
    return "not named live" if seconds is None else f"named live after {seconds:.1f} s"


def _record(case: Case, out: Path, follow: bool) -> bool:
    """Records a case, after its twin if that is needed and not there; whether it worked."""
    began = time.monotonic()
    try:
        is_lifted = lifted.can_be(case)
        twin = scenarios.twin(case) if truth.needs_twin(case) and not is_lifted else None
        if twin is not None and not truth.is_recorded(twin, out / twin.name):
            truth.write(twin, record.record(twin, out), None)
        with live.following(out / case.name) if follow else nullcontext():
            folder = record.record(lifted.lifted(case) if is_lifted else case, out)
        if is_lifted:
            lifted.cut(folder, case.job.steps)
        found = truth.write(case, folder, out / twin.name if twin else None)
    except (record.FailedError, NotPermittedError) as why:
        print(f"FAILED: {why}")
        return False
    small = "" if found.get("worth", True) else ", costs too little to count"
    print(f"{found['steps']} steps in {time.monotonic() - began:.0f} s{small}")
    return True


def _score(arguments: argparse.Namespace) -> int:
    folders = sorted(path.parent for path in arguments.folder.glob("*/truth.json"))
    results = []
    print(table.HEAD)
    for folder in folders:
        known = json.loads((folder / "truth.json").read_text())
        if _matches(known["scenario"], arguments.names) and _wanted(known, arguments):
            results.append(_scored(folder, arguments.run))
            print(table.row(results[-1]), flush=True)
    text = table.totals(results)
    print(f"\n{text}")
    if arguments.write:
        arguments.write.write_text(text + "\n")
    if arguments.labelled:
        arguments.labelled.write_text(table.labelled(results))
    return 0


def _wanted(known: dict[str, Any], arguments: argparse.Namespace) -> bool:
    of_family = not arguments.family or known["family"] in arguments.family
    part = arguments.everything or known["held_out"] == arguments.held_out
    return bool(of_family and part)


def _scored(folder: Path, command: str) -> Result:
    """Diagnoses a recorded job, in a process of its own, and compares with its truth."""
    known = json.loads((folder / "truth.json").read_text())
    words = [word.replace("{source}", str(folder / "job")) for word in shlex.split(command)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        return Result(known, Score(passed=False, remark=f"exit {done.returncode}: {last[0]}"), [])
    verdicts = json.loads(done.stdout)["verdicts"]
    score = judge(known, verdicts, truth.step_times(folder))
    return Result(known, score, judge_each(known, verdicts))
