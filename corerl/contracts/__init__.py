"""What a plugin supplies and what it is given: one page for each kind. Imports nothing of CoreRL but errors."""
