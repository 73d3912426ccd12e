"""Training from given responses: supervised fine-tuning, direct preference optimization, reward models."""
