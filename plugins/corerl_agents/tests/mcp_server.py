"""An MCP server, over its pipes or, with a port as argument, over HTTP on the loopback."""

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("numbers")
count = 0


@server.tool()
def count_up(by: int) -> str:
    """Count the calls of this process."""
    global count
    count += by
    return f"{count} of {os.getpid()}"


@server.tool()
def fail() -> str:
    """Raise an error."""
    raise ValueError("no luck")


@server.tool()
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


if __name__ == "__main__":
    if log := os.environ.get("MCP_TEST_PIDS") or (len(sys.argv) > 2 and sys.argv[2]):
        with Path(log).open("a") as file:
            file.write(f"{os.getpid()}\n")
    if len(sys.argv) > 1 and sys.argv[1] != "stdio":
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
