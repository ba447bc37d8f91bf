"""Counters of a GPU's units, thousands of times a second, for a while and on request (CUPTI's PM
sampling; EROICA, section 4.1 samples so).

A child process for each GPU (`child`) has `native/pm` sample it and sends frames (`frames`), which
become rows of `hardware` (`rows`). `windows` decides when; whatever CUPTI or the driver does, only
a child hangs or dies of it.
"""
