"""Rows of files as token ids: conversations, pairs of responses, responses with scores."""
