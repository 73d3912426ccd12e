"""A reader of shell scripts that start a training: it executes nothing but assignments, conditions and loops."""
