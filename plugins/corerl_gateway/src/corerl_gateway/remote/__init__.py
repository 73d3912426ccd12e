"""Rollout backends of models that other servers serve: ``remote`` by tokens, ``openai`` by chats."""
