"""KL types."""
