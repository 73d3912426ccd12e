"""Transports of weights from the actor's processes to the rollout workers' processes."""
