"""Tinker's API: clients train and sample a model of this machine, each with weights of its own."""
