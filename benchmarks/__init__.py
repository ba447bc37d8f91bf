"""Speed, as ratios against named baselines of the same run."""
