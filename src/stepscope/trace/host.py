"""Names of hosts."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

_VARIABLES = ("STEPSCOPE_HOST", "NODE_NAME", "SLURMD_NODENAME")
"""Our own, the usual name in Kubernetes' downward API, and Slurm's."""

UNNAMED = "host of ranks "
"""Begin of what a host is called whose name nobody recorded. Hosts of two jobs that are called so
are not the same."""


def host_name(env: Mapping[str, str] = os.environ) -> str:
    """This host's name in its scheduler, else its own hostname."""
    return next((env[key] for key in _VARIABLES if env.get(key)), socket.gethostname())
