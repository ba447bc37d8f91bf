"""Perfetto's traces: rows of tables to tracks, tracks to packets, packets to bytes.

    tracks, communication, stacks ─▶ lanes ─▶ packets, protobuf ─▶ members
    slices and counters of a rank    rows     bytes                gzip

`report.perfetto` draws a whole job on one clock with it, the processor what its host's ranks do.
Nothing but numpy is needed.
"""
