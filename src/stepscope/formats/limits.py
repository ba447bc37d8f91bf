"""Limits of plausible jobs: a file beyond them is damaged, or made to exhaust memory."""

MOST_RANKS = 1 << 20
"""Ten times the largest existing clusters."""
MOST_PACKET_BYTES = 1 << 26
"""Of one packet of a Perfetto trace. The longest that we write holds the names of kernels."""
MOST_UNPACKED_BYTES = 1 << 33
"""Of all Perfetto traces of a recording together: 130 million slices."""
MOST_SLICES = 1 << 24
"""Slices and values of all Perfetto traces of a recording: several times what a browser can open.
They take 2 GB of memory."""
MOST_TEXT_BYTES = 1 << 28
"""Of all distinct names in the Perfetto traces of a recording."""
MOST_TRACKS = 1 << 22
MOST_STRINGS = 1 << 23
"""Interned strings of a Perfetto trace at one time."""
MOST_DETAILS = 32
"""Of one slice. We write seven."""
