"""The controller: the loop and what it calls."""
