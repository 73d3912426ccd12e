"""Scorers in processes of their own: what a call does ends at most that call."""
