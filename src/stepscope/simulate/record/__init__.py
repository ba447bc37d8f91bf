"""What collectors would have written of a simulated job: the tables of the job folder."""

from stepscope.simulate.record.recorder import Recorder

__all__ = ["Recorder"]
