"""stepscope names the rank, device or code that makes distributed training slow or stuck."""

from stepscope.collect.phase import phase

__all__ = ["__version__", "phase"]
__version__ = "0.1.0"
