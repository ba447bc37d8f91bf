"""Speed benchmarks, reported as ratios to named baselines of the same run."""
