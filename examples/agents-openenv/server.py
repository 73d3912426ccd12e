"""An OpenEnv server with the game of ``game.py``; each session has a game of its own.

Call: ``python server.py FILE``. The server listens on a free port of the loopback, and writes its address into FILE. It
ends with the process that started it.
"""

import os
import socket
import sys
import threading
import time
from pathlib import Path

import uvicorn
from game import Game
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

SESSIONS = 512


class Guess(Action):
    number: int


class Hint(Observation):
    text: str = ""


class GuessEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None):
        self.game = Game(seed)
        return Hint(text="guess")

    def step(self, action):
        text, reward, done = self.game.guess(action.number)
        return Hint(text=text, reward=reward, done=done)

    @property
    def state(self):
        return State(step_count=self.game.guesses)


def end_with(parent, server):
    """End the server once its parent is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    server.should_exit = True


def main(file):
    """Serve until the parent is gone."""
    app = create_fastapi_app(GuessEnvironment, Guess, Hint, max_concurrent_envs=SESSIONS)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
    threading.Thread(target=end_with, args=(os.getppid(), server), daemon=True).start()
    listening = socket.create_server(("127.0.0.1", 0), backlog=SESSIONS)
    written = file.with_suffix(".part")
    written.write_text(f"http://127.0.0.1:{listening.getsockname()[1]}")
    written.replace(file)
    server.run(sockets=[listening])


main(Path(sys.argv[1]))
