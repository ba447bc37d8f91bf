"""The papers' rules as printed, and variants of the default; they run only by name."""
