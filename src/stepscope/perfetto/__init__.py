"""Writes Perfetto traces: table rows become tracks, tracks become packets, packets become bytes.

    tracks, communication, stacks ─▶ lanes ─▶ packets, protobuf ─▶ members
    slices and counters of a rank    rows     bytes                gzip

`report.perfetto` writes a whole job on one clock with it; the processor writes its host's ranks.
Only numpy is needed.
"""
