"""Inference engines in processes and Python environments of their own: what any rollout backend of that kind needs."""
