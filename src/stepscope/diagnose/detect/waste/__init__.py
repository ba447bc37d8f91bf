"""Time that all ranks lose: data loading, a function of the user's own, idle devices."""
