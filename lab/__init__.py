"""A cluster in a box: real training jobs on hosts made of namespaces, with known faults."""
