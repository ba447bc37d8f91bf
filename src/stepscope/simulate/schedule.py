"""The order in which a pipeline stage runs its microbatches: 1F1B, plain or interleaved.

1F1B: Narayanan et al., PipeDream (2019); interleaved: Narayanan et al., Efficient Large-Scale
Language Model Training on GPU Clusters (2021), section 2.2. With a single stage both are plain
gradient accumulation.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Direction = Literal["forward", "backward"]


class Cell(NamedTuple):
    """One pass of one microbatch through one model chunk of a stage."""

    direction: Direction
    chunk: int
    microbatch: int


def order_of(stage: int, stages: int, microbatches: int, chunks: int = 1) -> tuple[Cell, ...]:
    """A stage's order: forwards that fill the pipeline, then one forward, one backward in turn."""
    total = microbatches * chunks
    ahead = min(_warm_up(stage, stages, chunks), total)
    passes = range(total)
    forwards = [_cell("forward", at, stages, chunks) for at in passes]
    backwards = [_cell("backward", at, stages, chunks) for at in passes]
    steady = [cell for pair in zip(forwards[ahead:], backwards, strict=False) for cell in pair]
    return (*forwards[:ahead], *steady, *backwards[total - ahead :])


def _warm_up(stage: int, stages: int, chunks: int) -> int:
    """The number of forwards before the first backward."""
    behind = stages - stage - 1
    return behind if chunks == 1 else 2 * behind + (chunks - 1) * stages


def _cell(direction: Direction, at: int, stages: int, chunks: int) -> Cell:
    """The pass at a position: `stages` microbatches through one chunk, then through the next."""
    if chunks == 1:
        return Cell(direction, 0, at)
    round_, within = divmod(at, stages * chunks)
    chunk, microbatch = divmod(within, stages)
    if direction == "backward":
        chunk = chunks - 1 - chunk
    return Cell(direction, chunk, round_ * stages + microbatch)
