"""Preference losses: a number for each pair of responses."""
