"""`--topology FILE`: adds the switches of a cluster to a source whose job does not know them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.cli.sources import Source
from stepscope.errors import FormatError

if TYPE_CHECKING:
    from stepscope.formats.topology import Tree
    from stepscope.window import Window

Topology = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Which switches connect the hosts: Slurm's topology.conf or topology.yaml, or JSON. "
        "Replaces what the job knows.",
    ),
]


def read_tree(path: Path) -> Tree:
    """The switches in a file.

    Raises:
        SourceError: it cannot be read.
    """
    from stepscope.formats.topology import read

    return read(path)


class Placed:
    """A source whose windows have the switches of a file."""

    def __init__(self, source: Source, path: Path) -> None:
        """Raises SourceError: the file cannot be read."""
        self._source, self._path = source, path
        self._tree = read_tree(path)
        self.problems: list[str] = list(source.problems)
        self.version = source.version

    def refresh(self) -> Window:
        return self._placed(self._source.refresh())

    def read(self) -> Window:
        return self._placed(self._source.read())

    def _placed(self, window: Window) -> Window:
        """Raises FormatError: the file is that of another cluster."""
        from stepscope.formats.topology import in_job

        self.version = self._source.version
        try:
            job, problems = in_job(self._tree, window.job)
        except ValueError as error:
            raise FormatError(f"cannot use the topology {self._path}: {error}") from None
        self.problems = [*self._source.problems, *(f"{self._path}: {one}" for one in problems)]
        return replace(window, job=job)
