"""Whether one device explains what several seem to: slow places at different times.

Paper: Holmes (2025), section 4.4, takes the device that is likeliest over all iterations.
Ours: each set of slow places has its own likeliest devices. A transfer that is delayed at a rank is
slow in one of the rank's groups in this step and in another one in the next, and the other end of
each looks as guilty. If the sets have a device in common that is likely in each of them, two faults
at once are less likely than that one: then its probability is that of all sets together.
Cost: a few products of vectors, for each pair of at most five sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from stepscope.window import Floats

SHARED = 0.1
"""A device that is at least as likely in each of two sets explains both: devices less likely are
not named (`links.network.LEAST_NAMED`), and that two of a cluster's hundreds of devices fail at
once is less likely still. Our choice."""

Parts = tuple[int, ...]


def of_one_device(chances: Sequence[Floats], prior: Floats) -> list[tuple[Parts, Floats]]:
    """The numbers of the sets that one device explains, and the probability of each device then.

    Args:
        chances: for each set the probability of each device, given that one is to blame for it.
        prior: of each device, up to a factor; contained in all `chances`.
    """
    parts: list[tuple[Parts, Floats]] = [((at,), chance) for at, chance in enumerate(chances)]
    while len(parts) > 1:
        pairs = list(combinations(range(len(parts)), 2))
        common = [float(np.minimum(parts[a][1], parts[b][1]).max()) for a, b in pairs]
        best = int(np.argmax(common))
        if common[best] < SHARED:
            break
        one, other = pairs[best]
        joint = parts[one][1] * parts[other][1] / prior
        parts[one] = ((*parts[one][0], *parts.pop(other)[0]), joint / joint.sum())
    return parts
