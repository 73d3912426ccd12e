"""Ways of weights from the actor's processes to those of the rollout workers."""
