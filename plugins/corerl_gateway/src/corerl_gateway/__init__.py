"""The models of episodes over HTTP, for clients of OpenAI, Anthropic and vLLM."""
