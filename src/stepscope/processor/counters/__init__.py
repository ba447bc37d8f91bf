"""Samples GPU counters thousands of times a second in short windows, on request (CUPTI PM sampling;
EROICA, section 4.1, does the same).

One child process per GPU (`child`) runs the sampler of `native/pm` and sends frames (`frames`),
which become rows of `hardware` (`rows`). `windows` decides when. If CUPTI or the driver hangs or
crashes, only a child is affected.
"""
