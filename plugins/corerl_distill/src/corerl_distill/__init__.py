"""Distillation: the policy learns from the distributions of teachers at its own responses."""
