"""The order in which a pipeline stage runs its microbatches: 1F1B, plain and interleaved.

1F1B: Narayanan et al., PipeDream (2019); interleaved: Narayanan et al., Efficient Large-Scale
Language Model Training on GPU Clusters (2021), section 2.2. With one stage both are gradient
accumulation.
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
    """What a stage runs, in order: some forwards to fill the pipeline, then one of each in turn."""
    total = microbatches * chunks
    ahead = min(_warm_up(stage, stages, chunks), total)
    passes = range(total)
    forwards = [_cell("forward", at, stages, chunks) for at in passes]
    backwards = [_cell("backward", at, stages, chunks) for at in passes]
    steady = [cell for pair in zip(forwards[ahead:], backwards, strict=False) for cell in pair]
    return (*forwards[:ahead], *steady, *backwards[total - ahead :])


def _warm_up(stage: int, stages: int, chunks: int) -> int:
    """Forwards before the first backward."""
    behind = stages - stage - 1
    return behind if chunks == 1 else 2 * behind + (chunks - 1) * stages


def _cell(direction: Direction, at: int, stages: int, chunks: int) -> Cell:
    """The pass at a place of the order: `stages` microbatches through one chunk, then the next."""
    if chunks == 1:
        return Cell(direction, 0, at)
    round_, within = divmod(at, stages * chunks)
    chunk, microbatch = divmod(within, stages)
    if direction == "backward":
        chunk = chunks - 1 - chunk
    return Cell(direction, chunk, round_ * stages + microbatch)
