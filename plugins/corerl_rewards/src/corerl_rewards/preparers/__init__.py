"""Dataset preparers: one module each."""
