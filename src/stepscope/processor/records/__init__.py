"""Turns the records of a producer into table rows, and rows into columns."""
