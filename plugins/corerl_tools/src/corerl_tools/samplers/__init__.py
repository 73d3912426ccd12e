"""Orders of prompts: mixtures of data sources, curricula."""
