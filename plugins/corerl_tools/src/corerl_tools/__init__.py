"""Commands of CoreRL beside training."""
