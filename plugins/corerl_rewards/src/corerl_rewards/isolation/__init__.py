"""Scorers in processes of their own: what a call does ends at most that call."""

in_worker = False
"""this process is a worker: it may be ended, and another takes its place"""
