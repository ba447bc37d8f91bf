"""Synchronized profiles of some steps: orders in the job folder, traces on this host, patterns."""
