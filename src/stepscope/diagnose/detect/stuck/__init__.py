"""What does not go on: ranks that hang, that vanished, and calls that do not match."""
