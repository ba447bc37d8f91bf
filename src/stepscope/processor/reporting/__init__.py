"""Turns rows into Prometheus series and sends them by remote write."""
