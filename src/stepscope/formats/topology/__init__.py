"""Reads which switches connect the hosts: Slurm's `topology.conf` and `topology.yaml`, or JSON."""

from stepscope.formats.topology.fabric import Tree as Tree
from stepscope.formats.topology.fabric import in_job as in_job
from stepscope.formats.topology.reader import read as read
