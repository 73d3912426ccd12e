"""Inference engines in their own processes and Python environments: shared parts of their rollout backends."""
