"""Workers without models; Ray imports this module in every worker."""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from corerl.errors import ConfigError, NonFiniteError
from corerl.registry.runtimes import Role
from corerl.registry.training_strategies import TokenOutputs
from corerl.runtime.dispatch import Place, dispatch

TOY = Role("actor", "actor.strategy", "toy", distributed=True)
LONE = Role("actor", "actor.strategy", "lone", distributed=False)
SINK = Role("rollout", "rollout.name", "sink", distributed=True)


class Toy:
    """Keeps what it was called with."""

    def __init__(self, name="toy"):
        self.name, self.rank, self.shares = name, int(os.environ["RANK"]), []

    @dispatch("all")
    def all_ranks(self, value):
        self.shares.append(value)
        return self.rank, value

    @dispatch("rank_zero")
    def rank_zero(self):
        self.shares.append("alone")
        return self.rank

    @dispatch("one_each")
    def one_each(self, left, right):
        return left + right

    @dispatch("one_each")
    def seen(self):
        shares, self.shares = self.shares, []
        return shares

    @dispatch("one_each")
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
        )
        return {name: os.environ.get(name) for name in names} | {"folder": str(Path.cwd()), "pid": os.getpid()}

    @dispatch("split")
    def forward(self, batch, wanted=()):
        self.shares.append(batch.input_ids[:, 0].tolist())
        values = batch.input_ids[:, :1] * 10.0 + torch.arange(batch.response_mask.shape[1])
        return TokenOutputs(**{name: torch.where(batch.response_mask, values, 0.0) for name in wanted})

    @dispatch("split", merge="rank_zero")
    def update(self, batch, bad=()):
        rows = [row for row, first in enumerate(batch.input_ids[:, 0].tolist()) if first in bad]
        if bad:
            raise NonFiniteError("loss nan", rows)
        return {"weight": 7.0, "rank": self.rank}

    @dispatch("split")
    def generate(self, requests):
        self.shares.append(list(requests))
        return [f"{request}!" for request in requests]

    @dispatch("split")
    def echo(self, batch):
        return TokenOutputs(log_probs=batch.rollout_log_probs)

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
    def sleep(self, seconds):
        time.sleep(seconds)

    @dispatch("rank_zero")
    def start_child(self):
        self.child = subprocess.Popen(["sleep", "1000"])
        return self.child.pid

    @dispatch("rank_zero")
    def code_of_a_child(self):
        return subprocess.run([sys.executable, "-c", "raise SystemExit(3)"]).returncode

    def weights(self):
        for index in range(5):
            yield f"w{index}", torch.full((index + 1, 3), float(index), dtype=torch.bfloat16)

    def unmarked(self):
        raise AssertionError("not called here")


class Pair(Toy):
    """Two workers make one data-parallel rank."""

    def place(self):
        return Place(self.rank // 2, int(os.environ["WORLD_SIZE"]) // 2)


class Sink:
    """Takes weights."""

    @dispatch("one_each")
    def received(self):
        return self.version, self.weights

    def update_weights(self, weights, version, *, verify=False):
        self.version = version
        self.weights = {name: (str(tensor.dtype), tensor.tolist()) for name, tensor in weights}


class Broken:
    def __init__(self):
        raise ConfigError("model.path", "there is no model")
