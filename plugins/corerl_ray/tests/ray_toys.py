"""Workers without models; Ray imports this module in every worker, which takes half as long without torch."""

import asyncio
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

from corerl.contracts.dispatch import Place, dispatch
from corerl.contracts.rollout_backends import EngineLoad, GenerationRequest, SamplingParams
from corerl.contracts.runtimes import Role
from corerl.contracts.token_outputs import TokenOutputs
from corerl.errors import ConfigError, DeadlineError, EngineDeadError, NonFiniteError

TOY = Role("actor", "actor.strategy", "toy", distributed=True)
LONE = Role("actor", "actor.strategy", "lone", distributed=False)
ENGINE = Role("rollout", "rollout.name", "engine", distributed=True)

SECONDS = 300
"""deadline of everything that this machine may be too busy for"""

ROWS = (1, 2, 3, 50, 4, 5, 1, 1, 1, 1, 1, 1)
"""of the weights: 6, 12, 18, 300, 24 and 30 bytes, and 6 of 6"""


class Toy:
    """Keeps what it was called with."""

    added = 0

    def __init__(self, name="toy"):
        self.name, self.rank, self.shares = name, int(os.environ["RANK"]), []

    @dispatch("all")
    def all_ranks(self, value):
        self.shares.append(value)
        return self.rank, value

    @dispatch("all")
    def free_cache(self):
        self.shares.append("freed")

    @dispatch("rank_zero")
    def rank_zero(self):
        self.shares.append("alone")
        return self.rank

    @dispatch("all")
    def seen(self):
        shares, self.shares = self.shares, []
        return shares

    @dispatch("all")
    def environment(self):
        names = (
            "RANK",
            "LOCAL_RANK",
            "WORLD_SIZE",
            "MASTER_ADDR",
            "MASTER_PORT",
            "OMP_NUM_THREADS",
            "CORERL_TOY",
            "CUDA_VISIBLE_DEVICES",
            "TORCHELASTIC_USE_AGENT_STORE",
        )
        return {name: os.environ.get(name) for name in names} | {"folder": str(Path.cwd()), "pid": os.getpid()}

    @dispatch("all")
    def variables(self, names):
        return {name: os.environ.get(name) for name in names}

    @dispatch("split")
    def forward(self, batch, wanted=()):
        import torch

        self.shares.append(batch.input_ids[:, 0].tolist())
        values = batch.input_ids[:, :1] * 10.0 + torch.arange(batch.response_mask.shape[1])
        return TokenOutputs(**{name: torch.where(batch.response_mask, values, 0.0) for name in wanted})

    @dispatch("split")
    def doubled(self, numbers):
        """Needs no torch in the worker."""
        self.shares.append(numbers)
        return [2 * number for number in numbers]

    @dispatch("split", merge="rank_zero")
    def update(self, batch, bad=()):
        rows = [row for row, first in enumerate(batch.input_ids[:, 0].tolist()) if first in bad]
        if bad:
            raise NonFiniteError("loss nan", rows)
        return {"weight": 7.0, "rank": self.rank}

    @dispatch("split")
    def echo(self, batch):
        return TokenOutputs(log_probs=batch.rollout_log_probs)

    def kept(self, batch):
        return batch

    @dispatch("rank_zero")
    def read(self, outputs):
        return outputs.log_probs.tolist()

    @dispatch("all")
    def fail(self, rank, how):
        """Rank ``rank`` fails; the others wait, as they would in a collective."""
        print(f"about to fail: {how}", flush=True)
        if self.rank != rank:
            time.sleep(600)
        if how == "config":
            raise ConfigError("rollout.n", "is wrong")
        if how == "bug":
            raise KeyError("missing")
        if how == "exit":
            sys.exit(7)
        os.kill(os.getpid(), 9)

    @dispatch("all")
    def wait_for_others(self, raises):
        if raises:
            raise DeadlineError("it took too long")
        time.sleep(600)

    @dispatch("all")
    def sleep(self, seconds):
        time.sleep(seconds)

    @dispatch("all")
    def sleep_on(self, ranks, seconds):
        if self.rank in ranks:
            time.sleep(seconds)

    @dispatch("rank_zero")
    def start_child(self):
        self.child = subprocess.Popen(["sleep", "1000"])
        return self.child.pid

    @dispatch("rank_zero")
    def code_of_a_child(self):
        return subprocess.run([sys.executable, "-c", "raise SystemExit(3)"]).returncode

    def weights(self):
        import torch

        for index, rows in enumerate(ROWS):
            if "CORERL_READ" in os.environ and self.rank == 0:
                Path(os.environ["CORERL_READ"]).write_text(str(index + 1))
            yield f"w{index}", torch.full((rows, 3), float(index) + self.added, dtype=torch.bfloat16)

    @dispatch("all")
    def train(self):
        self.added += 1

    @dispatch("rank_zero")
    def added_so_far(self):
        return self.added

    def unmarked(self):
        raise AssertionError("not called here")


class WithTorch(Toy):
    """As every real worker is."""

    def __init__(self):
        import torch  # noqa: F401

        super().__init__()


class Pair(Toy):
    """Two workers make one data-parallel rank."""

    def place(self):
        return Place(self.rank // 2, int(os.environ["WORLD_SIZE"]) // 2)


def request(name, *, n=1, seconds=0.0, session=""):
    """One that an Engine answers after so many seconds."""
    return GenerationRequest(str(name), [1], SamplingParams(max_tokens=8, n=n, temperature=seconds), session=session)


def until(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Generation:
    """A call of ``generate`` in a thread with an event loop of its own; it yields what ``on_finished`` is given."""

    def __init__(self, rollout, requests):
        self._rollout, self._requests, self._finished = rollout, list(requests), queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            asyncio.run(self._rollout.generate(self._requests, self._on_finished))
            self._finished.put(None)
        except Exception as error:
            self._finished.put(error)

    def _on_finished(self, position, completions):
        here = threading.current_thread() is self._thread
        self._finished.put({position: completions} if here else AssertionError("not in the thread of the event loop"))

    def __iter__(self):
        while isinstance(finished := self._finished.get(timeout=SECONDS), dict):
            yield finished
        if finished is not None:
            raise finished

    def result(self):
        """The completions in the order of the requests; each request is finished once."""
        found = {}
        for some in self:
            assert not found.keys() & some.keys()
            found |= some
        return [found[position] for position in range(len(self._requests))]


class Engine:
    """Takes requests and weights at the same time; it notes what it has in hand."""

    def __init__(self):
        self.calls, self.running, self.most, self.lock = [], 0, 0, threading.Lock()
        self.version, self.weights, self.aborted = None, {}, threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.left_to_live, self.updates = None, 0
        self.startable = threading.Event()
        self.startable.set()

    @dispatch("revive")
    def restart(self):
        if self.left_to_live is not None:
            self.startable.wait()
        self.left_to_live = None

    @dispatch("all")
    def let_start(self, on):
        (self.startable.set if on else self.startable.clear)()

    @dispatch("all")
    def end_engine(self, ranks, after):
        """The engines of these replicas end in their next call, after so many results."""
        self.left_to_live = after if int(os.environ["RANK"]) in ranks else None

    @dispatch("spread")
    async def generate(self, requests, on_finished):
        """The quick ones first."""
        samples = sum(request.sampling.n for request in requests)
        with self.lock:
            self.calls.append([request.request_id for request in requests])
            self.running += samples
            self.most = max(self.most, self.running)
        before, aborted = 0.0, self.aborted
        for seconds, position in sorted((one.sampling.temperature, index) for index, one in enumerate(requests)):
            await self.pause(seconds - before, aborted)
            before = seconds
            if self.left_to_live == 0:
                self.running -= samples
                raise EngineDeadError("the engine ended")
            if self.left_to_live is not None:
                self.left_to_live -= 1
            on_finished(position, [requests[position].request_id] * requests[position].sampling.n)
        with self.lock:
            self.running -= samples

    async def pause(self, seconds, aborted):
        """Until then, or until it is aborted."""
        end = time.monotonic() + seconds
        while not aborted.is_set() and (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.05))

    @dispatch("all")
    def abort(self):
        """What runs; later calls are not."""
        self.aborted.set()
        self.aborted = threading.Event()

    @dispatch("all")
    def seen(self):
        """The requests of each call, the most samples at a time, and those running now."""
        calls, self.calls, most, self.most = self.calls, [], self.most, 0
        return calls, most, self.running

    @dispatch("all")
    def in_hand(self):
        """The samples running now."""
        return self.running

    @dispatch("all")
    def number_of_updates(self):
        return self.updates

    @dispatch("all")
    def received(self):
        return self.version, self.weights

    @dispatch("all")
    def environment(self):
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
        return {name: os.environ.get(name) for name in names}

    @dispatch("all")
    def die(self, rank):
        if int(os.environ["RANK"]) == rank:
            print("about to die", flush=True)
            os.kill(os.getpid(), 9)

    @dispatch("rank_zero")
    def code_of_a_child(self):
        return subprocess.run([sys.executable, "-c", "raise SystemExit(3)"]).returncode

    def update_weights(self, weights, version, *, verify=False):
        self.version, self.weights, self.updates = version, {}, self.updates + 1
        for name, tensor in weights:
            self.go_on.wait()
            self.weights[name] = (str(tensor.dtype), tensor.tolist())

    @dispatch("all")
    def read_on(self, on):
        (self.go_on.set if on else self.go_on.clear)()


def each(group, name, *args):
    """The results of a method, of every worker of a group."""
    from corerl_ray.group import call, pending

    return pending(group, name, [call(member, name, args, {}) for member in group.members], list).result()


def kept_rows(group, batch, *shards):
    """A handle of rows that workers keep: each shard, rows of the batch, at another worker; without, all at one."""
    import torch

    from corerl_ray.group import keep, pending
    from corerl_ray.kept import KeptRows

    rows = [torch.tensor(own) for own in shards] or [torch.arange(len(batch))]
    begun = [keep(group.members[place], "kept", [batch.select(own)], {}) for place, own in enumerate(rows)]
    pending(group, "kept", [call for call, _ in begun], list).result()
    return KeptRows.of([reference for _, reference in begun], batch.numbers(), rows)


def corrupt(host):
    """From now on a bit of the weight w1 changes before the rollout worker of this process unpacks it."""
    from corerl_ray.transports import broadcast
    from corerl_torch.weights.buckets import unpack

    def flipped(buckets):
        for bucket in buckets:
            for slot in bucket.index:
                if slot.name == "w1":
                    bucket.data[slot.offset + 3] ^= 4
            yield bucket

    broadcast.unpack = lambda buckets: unpack(flipped(buckets))


class Many:
    """Keeps all requests until it lets go of them, later ones until the next time; it reports their number."""

    ROOM = 100_000

    def __init__(self):
        self.running, self.go = [], asyncio.Event()

    def engine_load(self):
        return EngineLoad(room=self.ROOM, running=len(self.running))

    @dispatch("spread")
    async def generate(self, requests, on_finished):
        names = [request.request_id for request in requests]
        self.loop, self.running = asyncio.get_running_loop(), [*self.running, *names]
        try:
            await self.go.wait()
            for position, name in enumerate(names):
                on_finished(position, [name])
        finally:
            for name in names:
                self.running.remove(name)

    @dispatch("all")
    def let_go(self):
        go, self.go = self.go, asyncio.Event()
        self.loop.call_soon_threadsafe(go.set)

    @dispatch("all")
    def names(self):
        return list(self.running)

    @dispatch("all")
    def die(self, rank):
        os.kill(os.getpid(), 9)


class Late(Engine):
    @dispatch("spread")
    async def generate(self, requests, on_finished):
        """As a healthy engine past ``rollout.timeout``, on the first rank."""
        on_finished(0, [requests[0].request_id])
        if int(os.environ["RANK"]) == 0:
            raise DeadlineError("1 of 2 prompts had no responses")
        await asyncio.sleep(600)


class Broken:
    def __init__(self):
        raise ConfigError("model.path", "there is no model")


class Meeting:
    """Is built once another is being built, too."""

    def __init__(self, folder, name):
        self.name = name
        (Path(folder) / name).touch()
        until(lambda: len(list(Path(folder).iterdir())) == 2)

    @dispatch("rank_zero")
    def who(self):
        return self.name


class Slow:
    def __init__(self):
        time.sleep(600)


TALKERS = Role("episodes", "rollout.num_workers", "talker", distributed=True, workers=2, timeout=60.0)


class Talker:
    """Plays orders by their names: ``ask:NAME`` sends two requests, others fail, once or always."""

    @dispatch("spread")
    async def play(self, orders, on_finished, requests):
        [order] = orders
        what, _, name = order.request_id.partition(":")
        if what == "raise":
            raise ConfigError("rollout.agent", name)
        if what == "kill" or (what == "kill-once" and self.is_first(name)):
            os.kill(os.getpid(), 9)
        if what == "block-once" and self.is_first(name):
            time.sleep(600)
        ago = []
        said = [await requests.complete(request(f"{name}.{turn}"), ago.append) for turn in range(2)]
        on_finished(0, (os.getpid(), [one for [one] in said], ago))

    @staticmethod
    def is_first(path):
        first = not Path(path).exists()
        Path(path).touch()
        return first

    @dispatch("all")
    def close(self):
        print("closed", flush=True)


class Answers:
    """The engines of a controller.

    Attributes:
        under_way: names of requests.
        most: of them, at a time.
    """

    def __init__(self, seconds=0.0):
        self.seconds, self.under_way, self.most = seconds, set(), 0

    async def complete(self, asked, on_sent):
        self.under_way.add(asked.request_id)
        self.most = max(self.most, len(self.under_way))
        on_sent()
        try:
            await asyncio.sleep(self.seconds)
            if asked.request_id.startswith("lost"):
                raise EngineDeadError("no engine is left")
        finally:
            self.under_way.remove(asked.request_id)
        return [asked.request_id]


async def talked(group, name, engines):
    """What the talkers make of an order."""
    found = []
    await group.play([request(name)], lambda position, one: found.append(one), engines)
    return found[0]
