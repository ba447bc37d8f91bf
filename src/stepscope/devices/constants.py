"""What one job says about a device: likelihood ratios, and the constants behind them.

A bad device shows itself in a job with probability `SHOWS`; at a healthy one something passing is
found with probability `PASSING`: other processes, a hot day, a wrong verdict. A verdict of
certainty c is right with probability c, so

    evidence = log( (c SHOWS + (1-c)(1-SHOWS)) / (c k PASSING + (1-c)(1 - k PASSING)) )

for each of the k devices that it cannot distinguish, and a job that ran well for so long that a bad
device shows itself with probability s <= SHOWS says log( (1-s) / (1 - PASSING s/SHOWS) ).
"""

from __future__ import annotations

import math

PRIOR = 0.01
"""The share of devices that are bad. In three months 126 devices, 74 of them GPUs, made steps of
jobs on up to 8,192 GPUs irregular (Holmes, appendix A): about one GPU in a hundred. Paper; one
number for all types is our choice."""
SHOWS = 0.5
"""A bad device may do no harm to a job, or only now and then. Our choice."""
SHOWS_MOVING = 0.25
"""The same of devices that move data, which delay only jobs that wait for it: a bad cable was
blamed in 30 of 81 jobs that used it, a bad GPU in 70 of 92 (benchmarks/devices.py), twice as often.
Our simulator."""
PASSING = 0.01
"""As many devices are blamed once and never again as are bad. Our choice."""
SURE = 0.95
"""Verdicts with a score of 0.9 or more are right in 94 % of cases where little was recorded
(docs/evaluation.md). Our simulator."""
UNKNOWN_CAUSE = 0.7
"""Certainty of a verdict without a cause, at most: more often it is the code than the host. Our
choice."""
HOST_ODDS = 0.04
"""Of 26 bad devices in a host, one is so because its host is: its power, cooling or board. With
more, the host of every bad device would have to be watched. Our choice."""
PATIENCE_S = 300.0
"""After five minutes, half of the faults that show themselves in a job have done so. Our choice."""
HALF_LIFE_DAYS = 14.0
"""Evidence counts half after two weeks: machines are repaired, moved and cleaned. Our choice."""
LEAST_ODDS = 3.0
"""Healthy jobs divide the odds by three at most, so that three bad jobs are enough, whatever the
device did before. Our choice."""
MOST_LIKELY = 0.99
"""Bad jobs raise the probability to this at most, so that seven long healthy jobs clear a device
that was repaired. Our choice."""
DRAIN = 0.5
"""A device that is more likely bad than not should not get another job. Our choice."""
WATCH = 0.05
"""Five times as likely as any other device: one certain verdict is enough. Our choice."""

PRIOR_LOG_ODDS = math.log(PRIOR / (1 - PRIOR))
LEAST, MOST = -math.log(LEAST_ODDS), math.log(MOST_LIKELY / (1 - MOST_LIKELY)) - PRIOR_LOG_ODDS
"""Between these the sum of all evidence is kept."""


def blamed_log_odds(certainty: float, among: int = 1) -> float:
    """The evidence of a verdict against each of `among` devices; never below 0."""
    sure = min(max(certainty, 0.0), SURE)
    passing = min(among * PASSING, SHOWS)
    if_bad = sure * SHOWS + (1 - sure) * (1 - SHOWS)
    if_healthy = sure * passing + (1 - sure) * (1 - passing)
    return max(math.log(if_bad / if_healthy), 0.0)


def healthy_log_odds(seconds: float, shows: float = SHOWS) -> float:
    """The evidence of a job that ran for so long without a verdict on the device; never above 0."""
    seen = shows * (1 - 0.5 ** (max(seconds, 0.0) / PATIENCE_S))
    return math.log((1 - seen) / (1 - PASSING * seen / SHOWS))


def host_share(devices: int) -> float:
    """The host's share of the blame if one job blames so many of its devices for one cause.

    Either the host is bad, or each device is by itself: the odds are HOST_ODDS to PRIOR^(n - 1).
    """
    return HOST_ODDS / (HOST_ODDS + PRIOR ** (devices - 1))


MOST_OF_A_JOB = blamed_log_odds(1.0)
LEAST_OF_A_JOB = math.log((1 - SHOWS) / (1 - PASSING))
