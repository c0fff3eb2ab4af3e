"""Timings as ratios against baselines measured in the same run."""

# Without this file a package of this name that a test dependency installs would be found first.
