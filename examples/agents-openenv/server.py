"""An OpenEnv server with the game "guess": a number from 1 to 7, three guesses, and hints.

Call: ``python server.py FILE``. It listens on a free port of the loopback, and writes its address into FILE.
"""

import os
import random
import socket
import sys

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

NUMBERS, GUESSES, SESSIONS = 7, 3, 512


class Guess(Action):
    number: int


class Hint(Observation):
    text: str = ""


class Game(Environment):
    """Each session of the server has a game of its own."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None):
        self.secret, self.guesses = random.Random(seed).randint(1, NUMBERS), 0
        return Hint(text="guess")

    def step(self, action):
        self.guesses += 1
        if action.number == self.secret:
            return Hint(text="right", reward=1.0, done=True)
        hint = "higher" if action.number < self.secret else "lower"
        return Hint(text=hint, reward=0.0, done=self.guesses == GUESSES)

    @property
    def state(self):
        return State(step_count=self.guesses)


if __name__ == "__main__":
    app = create_fastapi_app(Game, Guess, Hint, max_concurrent_envs=SESSIONS)
    listening = socket.create_server(("127.0.0.1", 0), backlog=SESSIONS)
    written = f"{sys.argv[1]}.part"
    with open(written, "w") as file:
        file.write(f"http://127.0.0.1:{listening.getsockname()[1]}")
    os.replace(written, sys.argv[1])
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
