"""Scorers: plain functions, one module each."""
