"""Tests of the lab: jobs on hosts in a box."""
