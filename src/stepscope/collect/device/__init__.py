"""When a GPU reaches the ends of phases: events in its streams, read later and never waited for."""
