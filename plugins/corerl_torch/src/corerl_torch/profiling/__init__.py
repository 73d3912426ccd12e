"""Profiles of chosen steps and ranks: traces of torch's profiler, and snapshots of the memory of GPUs."""
