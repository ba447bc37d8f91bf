"""The guest inside a training process: standard library only, never raises, never blocks.

`startup` is called once torch has been imported; it installs `hooks`, each of which turns one
source into records of a `Session`; a `Sender` thread ships them to the processor of this host.
"""
