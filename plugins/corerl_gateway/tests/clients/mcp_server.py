"""A server of the official MCP SDK with one tool."""

from episodes import add
from mcp.server import MCPServer

server = MCPServer("adder")
server.tool()(add)
server.run("stdio")
