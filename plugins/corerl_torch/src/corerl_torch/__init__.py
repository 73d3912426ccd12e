"""Parts shared by training strategies."""
