"""A mutation run: `make mutants`."""
