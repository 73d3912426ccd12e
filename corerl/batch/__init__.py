"""The rollouts of a step, and their mini-batches."""
