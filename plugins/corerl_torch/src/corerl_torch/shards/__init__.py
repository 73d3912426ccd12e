"""The rows of a step in processes of their own."""
