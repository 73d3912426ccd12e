"""Scorers in worker processes: the effects of a call are limited to that call."""

in_worker = False
"""true in a worker: the process may be killed and replaced"""
