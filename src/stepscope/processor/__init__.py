"""One per host: takes producers' records and outside samples, writes the job folders.

`state` decides without I/O; `daemon` carries out. `steps` finds training steps, `normalise` turns
records into table rows, `stacks` and `hardware` look at the ranks from outside.
"""
