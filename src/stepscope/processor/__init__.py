"""The processor, one per host: receives producers' records and writes the job folders.

`state` decides without I/O and returns `instructions`; `daemon` carries them out. `records` turns
records into rows, `operators` joins NCCL's operators with calls and kernels, and `compress`
summarises kernels. `sampling`, `hardware` and `counters` observe the ranks and the host from
outside. `folders` stores, `reporting` sends series, `sockets` listens.
"""
