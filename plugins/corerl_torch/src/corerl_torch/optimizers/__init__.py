"""Optimizers of ``actor.optim.optimizer``."""
