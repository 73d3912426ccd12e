"""Checkpoints: written whole or not at all."""
