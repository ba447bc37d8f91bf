"""Time that a job loses again and again, whoever takes it."""
