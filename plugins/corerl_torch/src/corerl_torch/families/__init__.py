"""Families of models: a table of proofs, and the probe that decides whether a model's rows can be packed."""
