"""Parts that training strategies share."""
