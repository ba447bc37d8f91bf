"""Makes the tables of the job folder that collectors would write for a simulated job."""

from stepscope.simulate.record.recorder import Recorder

__all__ = ["Recorder"]
