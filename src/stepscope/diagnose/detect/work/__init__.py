"""Work that is unequal by the job's own structure or data."""
