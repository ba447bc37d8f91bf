"""`stepscope evaluate --train-forest`: Holmes' random forest, from jobs whose faults are known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli import exits
from stepscope.cli.fitted import next_version, write
from stepscope.errors import FormatError, SourceError

if TYPE_CHECKING:
    from stepscope.diagnose.detect.published.holmes_model import Model
    from stepscope.evaluate.labels import Labelled
    from stepscope.evaluate.suite import Case


@dataclass(frozen=True)
class Training:
    """What to train on, and the file to write."""

    file: Path
    suite: str
    seeds: Sequence[int]
    jobs: Sequence[Case]
    held_out_seeds: Sequence[int]
    held_out: Sequence[Case]
    recorded: Sequence[Path]

    def run(self) -> int:
        """Trains, writes and describes the forest."""
        import stepscope
        from stepscope.diagnose.detect.published.holmes_model import to_text
        from stepscope.evaluate.forest import train

        version = next_version(self.file, "is no forest")
        recorded = [one for one in map(_of_folder, self.recorded) if one is not None]
        jobs = [*_simulated(self.jobs, "labelling jobs to train on"), *recorded]
        others = _simulated(self.held_out, "labelling jobs to score")
        told: dict[str, Any] = {
            "stepscope": stepscope.__version__, "suite": self.suite,
            "families": sorted({case.row for case in self.jobs}),
            "ranks": sorted({case.scenario.ranks for case in self.jobs}),
            "seeds": [*self.seeds], "held_out_seeds": [*self.held_out_seeds],
            "recorded": [one.name for one in recorded],
        }  # fmt: skip
        model = train(jobs, others, version, told)
        write(self.file, to_text(model))
        print(_described(model, self.file), end="", flush=True)
        return exits.NOTHING_FOUND


def _simulated(cases: Sequence[Case], title: str) -> list[Labelled]:
    from stepscope.cli.terminal import count_progress
    from stepscope.evaluate.labels import of_scenario

    found = []
    with count_progress(title) as advance:
        for done, case in enumerate(cases, 1):
            found.append(of_scenario(case.scenario, case.id))
            if advance is not None:
                advance(done, len(cases))
    return [one for one in found if one is not None]


def _of_folder(folder: Path) -> Labelled | None:
    """A recorded job; its truth is beside it, as `simulate` or the lab writes it."""
    from stepscope.cli.sources import open_window
    from stepscope.evaluate.labels import fault_spans, of_recording

    beside = (folder.with_name(f"{folder.name}.truth.json"), folder.with_name("truth.json"))
    truth = next((one for one in beside if one.exists()), None)
    if truth is None:
        raise SourceError(f"{folder}: its faults are not known: there is no {beside[0].name} and no"
                          f" {beside[1].name} beside it")  # fmt: skip
    try:
        data = json.loads(truth.read_text(encoding="utf-8"))
        spans, name = fault_spans(data), str(data.get("id", folder.name))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{truth}: {type(error).__name__}: {error}") from error
    window, _ = open_window(str(folder))
    return of_recording(window, spans, name)


def _described(model: Model, file: Path) -> str:
    told = model.trained
    lines = [f"wrote {file}: version {model.version}, {file.stat().st_size / 1000:.0f} kB",
             f"trained on {_amount(told)}"]  # fmt: skip
    others = told["held_out"]
    if others["jobs"]:
        lines.append(f"on {_amount(others)} of other seeds:")
        lines += [_scored(name, others[name]) for name in ("forest", "rule")]
    return "\n".join([*lines, ""])


def _scored(name: str, one: Any) -> str:
    return (f"  {name:6}  precision {one['precision']:.3f}   recall {one['recall']:.3f}   "
            f"F1 {one['f1']:.3f}")  # fmt: skip


def _amount(told: Any) -> str:
    return (f"{told['operators']:,} operators ({told['abnormal']:,} abnormal) of {told['jobs']} "
            "jobs with irregular steps")  # fmt: skip
