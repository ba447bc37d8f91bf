"""Finds when a GPU starts and ends phases: events in its streams, polled and never waited for."""
