"""What the ranks of a test do, and what a test does beside them with ``torch`` on one device."""

import functools
import threading
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from corerl.checkpoint.writing import described
from corerl.contracts.token_columns import TokenColumn, TokenValues
from corerl_fsdp import tensor_parallel
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions, TorchOptions
from corerl_fsdp.shard_files import ShardWriter
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_testing.training_ranks import AllOutputs, RankJobs, rank_batch, share
from corerl_testing.training_reference import copied_weights


class Jobs(RankJobs):
    """``torch`` where a job has no options of ``fsdp``."""

    def strategy(self, job):
        """With ``plan``, changes of the plan that divides matrices (None: no such style); with ``compiler``, that of
        compiled layers.
        """
        if "plan" in job or "compiler" in job:
            plan_of = tensor_parallel.plan_of
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tensor_parallel, "plan_of", lambda *given: {**plan_of(*given), **job.get("plan", {})})
                if "compiler" in job:
                    patch.setattr(torch, "compile", functools.partial(torch.compile, backend=job["compiler"]))
                return FsdpStrategy(self.spec(job), FsdpOptions(**job["fsdp"]))
        if "fsdp" in job:
            return FsdpStrategy(self.spec(job), FsdpOptions(**job["fsdp"]))
        return SingleDeviceStrategy(self.spec(job), TorchOptions(logits_chunk_size=None, **job.get("torch", {})))

    def rows(self, job):
        """With ``experts`` (layers, number, top_k), a column of random choices."""
        batch = super().rows(job)
        if "experts" in job:
            batch.columns["experts"] = chosen_experts(batch, *job["experts"])
        return batch

    def record_gradient(self, strategy, seen):
        take_step = strategy._step

        def step(*arguments):
            for name, parameter in strategy.model.named_parameters():
                gradient = parameter.grad
                if gradient is None:
                    continue
                whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
                seen[name] = whole.cpu().clone()
            return take_step(*arguments)

        strategy._step = step

    def apart(self, job):
        """Adapters after an update, and log-probs of the reference without them."""
        strategy = self.strategy(job)
        experience = share(rank_batch(), strategy)
        strategy.update(experience, AllOutputs())
        sent = {name: each.clone() for name, each in strategy.adapters(torch.float32)}
        with strategy.base(strategy.spec.micro_batching):
            base = strategy.forward(experience, ["log_probs"]).log_probs
        return {"adapters": sent, "base": base, "after": strategy.forward(experience, ["log_probs"]).log_probs}

    def operations(self, job):
        """Of the passes of one micro-batch: operations on DTensors, and sums over ranks."""
        strategy, sums = self.strategy(job), []
        experience = share(rank_batch(), strategy)
        strategy.update(experience, AllOutputs())
        with pytest.MonkeyPatch.context() as patch, Sharded() as seen:
            reduce = torch.distributed.all_reduce
            patch.setattr(torch.distributed, "all_reduce", lambda *given, **named: sums.append(reduce(*given, **named)))
            strategy._run(experience, {"log_probs"}).log_probs.sum().backward()
        return {"on_dtensors": seen.count, "sums": len(sums)}

    def memory(self, job):
        """Bytes that this rank has of weights, gradients (after each micro-batch) and the optimizer's state."""
        strategy, gradients = self.strategy(job), []
        backward = strategy._backward

        def noted(*arguments):
            backward(*arguments)
            groups = [module._get_fsdp_state()._fsdp_param_group for module in fully_sharded(strategy.token_model)]
            waiting = [each.unsharded_accumulated_grad for group in groups if group for each in group.fsdp_params]
            reduced = [parameter.grad for parameter in strategy.model.parameters()]
            gradients.append(held([each for each in (*waiting, *reduced) if each is not None]))

        strategy._backward = noted
        strategy.update(share(rank_batch(), strategy), AllOutputs())
        moments = [state[name] for state in strategy.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
        return {"weights": held(strategy.model.parameters()), "gradients": gradients, "optimizer": held(moments)}

    def slow_writes(self, job):
        """Checkpoints: ``slow``; ``hung``; ``beside``, while that is written; ``failed``; ``last``.

        What each came to, on this rank; rank 1 is the one that is slow, hangs or fails.
        """
        strategy, outcomes, released = self.strategy(job), {}, threading.Event()
        write_data, is_late = ShardWriter.write_data, strategy.data_parallel_rank == 1

        def full():
            raise OSError(28, "No space left on device")

        before = {"slow": lambda: time.sleep(2.5), "hung": lambda: released.wait(60), "failed": full}

        def write(writer, *arguments):
            if is_late:
                before.get(Path(writer.path).name, lambda: None)()
            return write_data(writer, *arguments)

        def begin(name):
            folder = Path(job["save"]) / name
            folder.mkdir(exist_ok=True)
            write_all = strategy.save(folder)

            def report():
                try:
                    write_all()
                    outcomes[name] = "written"
                except BaseException as error:  # torch's CheckpointException is no Exception
                    outcomes[name] = described(error)

            thread = threading.Thread(target=report, daemon=True)
            thread.start()
            return thread

        with mock.patch.object(ShardWriter, "write_data", write):
            begin("slow").join(30)
            hung = begin("hung")
            for name in ("beside", "failed", "last"):
                begin(name).join(30)
            outcomes["hung before"] = outcomes.get("hung", "is being written")
            released.set()
            hung.join(30)
        return outcomes

    def overflow(self, job):
        """An update whose gradient overflows on rank 0 alone; the scale before and after."""
        strategy = self.strategy(job)
        strategy.loss_scale.value = 2.0**24
        before, weights = strategy.loss_scale.value, copied_weights(strategy)
        experience = share(rank_batch(), strategy)
        if strategy.data_parallel_rank:
            experience.loss_weights = experience.loss_weights * 0
        metrics = strategy.update(experience, AllOutputs())
        moved = any(not torch.equal(each, weights[name]) for name, each in copied_weights(strategy).items())
        return {"scales": [before, strategy.loss_scale.value], "grad_norm": "grad_norm" in metrics, "moved": moved}

    def loading(self, job):
        """Most bytes that this rank held while it loaded (``load``: a checkpoint), its share, other sizes, weights."""
        self.strategy(job)  # the probe's small model is made once in a process
        with Held() as seen:
            strategy = self.strategy(job)
        if "load" in job:
            with Held() as seen:
                strategy.load(Path(job["load"]))
        named = [*strategy.model.named_parameters()]
        adapters = [each for name, each in named if ".lora_" in name]
        sizes = [each.numel() * each.element_size() for _, each in named]
        share = held([each for _, each in named]) + held(strategy.model.buffers())
        found = {"most": seen.most, "share": share, "largest": max(sizes), "all": sum(sizes)}
        adapted = sum(each.numel() * each.element_size() for each in adapters)
        return found | {"adapters": adapted, "weights": copied_weights(strategy)}

    def gathered(self, job):
        """Bytes that this rank gives to the others: of weights in bf16, and of weights as they are held."""
        strategy, found = self.strategy(job), []
        strategy.rounding.stream = lambda weights, dtype: weights(dtype)  # of a stream that is not measured
        for dtype in (torch.bfloat16, None):
            with Given() as given:
                for _ in strategy.weights(dtype):
                    pass
            found.append(given.size)
        return found


class Held(TorchDispatchMode):
    """The most bytes of tensors alive at a time; of a tensor that a file has, the bytes of the part that is copied."""

    def __init__(self):
        super().__init__()
        self.alive, self.mapped, self.most = {}, {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if any(issubclass(each, DTensor) for each in types):
            return result
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor) and each.device.type == "cpu":
                storage = each.untyped_storage()
                if "set_.source_Storage" in str(function):
                    self.mapped[storage._cdata] = StorageWeakRef(storage)
                elif storage._cdata not in self.mapped:
                    self.alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.alive = {key: value for key, value in self.alive.items() if not value[0].expired()}
        self.mapped = {key: value for key, value in self.mapped.items() if not value.expired()}
        of_a_file = "copy_" in str(function) and args[1].untyped_storage()._cdata in self.mapped
        read = args[1].numel() * args[1].element_size() if of_a_file else 0
        self.most = max(self.most, read + sum(size for _, size in self.alive.values()))
        return result


class Sharded(TorchDispatchMode):
    """Counts operations on DTensors."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += any(issubclass(each, DTensor) for each in types)
        return function(*args, **(kwargs or {}))


class Given(TorchDispatchMode):
    """Counts the bytes that go into gathers."""

    def __init__(self):
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "all_gather" in str(function):
            self.size += args[0].numel() * args[0].element_size()
        return function(*args, **(kwargs or {}))


def chosen_experts(batch, layers, number, top_k):
    """Random experts of each token but the last one of a row and every fifth one."""
    numbers = np.random.default_rng(0)
    rows = []
    for length in batch.lengths.tolist():
        counts = np.array([step < length - 1 and step % 5 != 4 for step in range(length)], np.int32)
        chosen = [[numbers.permutation(number)[:top_k] for _ in range(layers)] for _ in range(counts.sum())]
        rows.append(TokenValues(np.array(chosen, np.uint8), counts))
    return TokenColumn.collate(rows, batch.lengths.tolist())


def fully_sharded(module):
    return [each for each in module.modules() if isinstance(each, FSDPModule)]


def held(tensors):
    """Bytes of this rank's own part of some tensors."""
    local = [each.to_local() if isinstance(each, DTensor) else each for each in tensors]
    return sum(each.numel() * each.element_size() for each in local)


run = Jobs()
