"""Writes each job's folder: its tables, its Perfetto traces and their upkeep."""
