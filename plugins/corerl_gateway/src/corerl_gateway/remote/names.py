"""Names of models that are no folders."""

PREFIX = "openai:"
"""before the name of a model at a server of chats, in ``model.path``"""
