"""What this machine is called."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

_VARIABLES = ("STEPSCOPE_HOST", "NODE_NAME", "SLURMD_NODENAME")
"""Ours, Kubernetes' usual downward-API name, Slurm's."""


def host_name(env: Mapping[str, str] = os.environ) -> str:
    """This machine's name as its scheduler knows it, else as it knows itself."""
    return next((env[key] for key in _VARIABLES if env.get(key)), socket.gethostname())
