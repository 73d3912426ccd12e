"""``python -m corerl_engine SOCKET``: run an engine for the process at the other end of an inherited socket."""

import asyncio
import importlib
import multiprocessing
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from multiprocessing import forkserver
from pathlib import Path

from . import frames
from .ending import end_others

HANG_UP = select.POLLHUP | select.POLLRDHUP | select.POLLERR


def main() -> None:
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    connection = socket.socket(fileno=descriptor)
    if os.fork() == 0:
        _end_with_the_other_side(connection)
    settings, _ = frames.receive(connection)
    if settings.get("preloaded"):  # by the process that forks the engine's other processes, while this one imports, too
        multiprocessing.set_forkserver_preload(settings["preloaded"])
        forkserver.ensure_running()
    try:
        library = importlib.import_module(settings["library"])
    except ImportError as error:
        connection.sendall(frames.pack({"event": "missing", "message": f"{type(error).__name__}: {error}"}))
        return
    connection.sendall(frames.pack({"event": "imported", "version": library.__version__}))
    try:
        if settings.get("nodes", {}).get("rank"):
            importlib.import_module(settings["adaptor"]).follow(settings)
            raise RuntimeError("one of its processes has ended")
        from .server import serve

        asyncio.run(serve(connection, settings))
    except Exception as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        connection.sendall(frames.pack({"event": "failed", "message": message}))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # ends despite threads and children; the other side notices and closes


def _end_with_the_other_side(connection: socket.socket) -> None:
    """When the other side has closed the connection, kill the engine with all its processes, and remove its folder.

    Runs in a separate process, because the engine may have ended while its children still run: Ray, for example, kills
    a worker's children, but not their children.
    """
    folder = Path.cwd()
    os.chdir("/")
    hang_up = select.poll()
    hang_up.register(connection, HANG_UP)
    hang_up.poll()
    end_others()
    if folder.name.startswith("corerl-"):
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
