"""Agents: chats in tokens, tool calls of model families, tools from functions and MCP servers."""
