"""A live view of a run on a terminal."""
