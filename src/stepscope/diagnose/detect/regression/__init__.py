"""What became slower than it was: all ranks together, or a rank that has no peers."""
