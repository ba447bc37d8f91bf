"""Adapters, links, switches and groups that move data slower than they did or than equals do."""
