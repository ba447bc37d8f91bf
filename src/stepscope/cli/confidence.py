"""`stepscope evaluate --fit-confidence`: how likely verdicts are right, learnt from known ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.cli import exits
from stepscope.cli.fitted import next_version, write
from stepscope.errors import UsageError


def fit_confidence(file: Path, labelled: Sequence[Path]) -> int:
    """Fits the weights to the verdicts in some files, writes and describes them.

    Raises:
        UsageError: no file of verdicts was given, or the weights cannot be written.
        FormatError: a file has other content, or `file` exists and is something else.
    """
    from stepscope.diagnose.decide.confidence import FACTS
    from stepscope.evaluate.confidence import fit, read, to_text

    if not labelled:
        raise UsageError("--fit-confidence needs --labelled FILE, verdicts whose truth is known")
    version = next_version(file, "holds no weights")
    verdicts = [one for source in labelled for one in read(source)]
    fits = {sort: fit(verdicts, sort) for sort in FACTS}
    write(file, to_text(fits, version))
    lines = [f"wrote {file}: version {version}"]
    lines += [f"  {sort:5}  {_described(one.about)}" for sort, one in fits.items()]
    print("\n".join(lines), flush=True)
    return exits.NOTHING_FOUND


def _described(about: Mapping[str, Any]) -> str:
    said = f"{about['verdicts']:,} verdicts, {about['right']:,} right"
    if "origins" not in about:
        return f"{said}; too few, or all alike: the methods' scores are kept"
    scores, fitted = about["log_loss_of_scores"], about["log_loss_on_other_origins"]
    if fitted is None:
        return f"{said}; of one origin, so weights cannot be judged: the methods' scores are kept"
    kept = "fitted weights" if fitted < scores else "the methods' scores"
    return (f"{said}; log loss of the methods' scores {scores:.3f}, of weights fitted to other "
            f"origins {fitted:.3f}: {kept} are kept")  # fmt: skip
