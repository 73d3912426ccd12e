"""verl's names for keys of a training config, and verl's commands as configs."""
