"""A cluster in a box: real training jobs on several network namespaces, with faults of known truth."""
