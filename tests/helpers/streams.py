"""Engines, rewards and streams of the tests of the stream of rollouts."""

import asyncio
import threading
from concurrent.futures import Future
from types import SimpleNamespace

from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion
from corerl.seeding import Seeds

SEEDS = Seeds(3)
TOKENIZER = SimpleNamespace(decode=lambda rows: [" ".join(map(str, row)) for row in rows])
PROMPTS = 12


class Engine:
    """Responses name their prompt's token and their number; those to a prompt come after ``seconds[token]``.

    ``version`` is that of the weights, ``asked`` the ids of the requests.
    """

    def __init__(self, seconds=None):
        self.seconds, self.version, self.asked, self.requests = seconds or {}, 0, [], []
        self.began = threading.Semaphore(0)

    async def generate(self, requests, on_finished):
        for request in requests:
            self.asked.append((request.request_id, self.version))
            self.requests.append(request)
            self.began.release()

        async def one(position, request):
            version, token = self.version, request.prompt_ids[1]
            await asyncio.sleep(self.seconds.get(token, 0.0))
            last = 77 if request.sampling.temperature == 0 else None
            samples = range(request.sampling.n)
            ids = [[token, number if last is None else last] for number in samples]
            on_finished(position, [Completion(each, [-1.0, -1.0], "stop", version) for each in ids])

        await asyncio.gather(*(one(position, request) for position, request in enumerate(requests)))


class Reward:
    """A hundred for each of the prompt's token, and the number of the response."""

    def score(self, requests):
        return [RewardResult(100.0 * int(first) + int(second)) for first, second in map(words, requests)]

    def submit(self, requests):
        scored = Future()
        scored.set_result(self.score(requests))
        return scored

    def close(self):
        pass


def words(request):
    return request.response.split()


def tokens(taken):
    """The groups of a step, by the tokens of their prompts."""
    return [prompt.token_ids[1] for prompt in taken.scored.rollouts.prompts[::2]]


def scores(results):
    return [result.score for result in results]
