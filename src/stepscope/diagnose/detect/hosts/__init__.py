"""Hosts that lack processor time, are late, or were stopped."""
