"""The collector inside a training process. It uses only the standard library, never raises, and
never blocks.

`startup` is called once torch has been imported and installs the `hooks`. Each hook turns one
source into records of a `Session`; a `Sender` thread sends them to the processor of this host.
"""
