"""The HTTP interface: messages, sessions, requests in order, answers."""
