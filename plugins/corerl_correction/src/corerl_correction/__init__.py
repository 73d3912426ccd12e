"""Rollout correction: importance weights and rejection rules between rollout backend and trainer."""
