"""Commands that start and end containers.

No keeper runs them: podman leaves the process that holds a container behind.
"""

import asyncio
from collections.abc import Sequence

from corerl_harness.surroundings import client_environment

MANAGE_SECONDS = 120.0
"""for the start, the restart or the removal of a container"""


async def manage(line: Sequence[str]) -> None:
    """Run a command of a container's runtime to its end.

    Raises:
        RuntimeError: it failed.
    """
    process = await asyncio.create_subprocess_exec(
        *line,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=client_environment(),
        start_new_session=True,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(MANAGE_SECONDS):
            complaint = await process.stderr.read(1 << 16)
            status = await process.wait()
    except TimeoutError:
        raise RuntimeError(f"'{' '.join(line[:2])}' takes longer than {MANAGE_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status:
        raise RuntimeError(f"'{' '.join(line[:2])}' failed: {complaint.decode(errors='replace').strip()[-500:]}")
