"""What the ranks of a test do, and what a test does beside them with ``torch`` on one device."""

import functools
import itertools
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies import torch as library
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch.distributed.checkpoint import FileSystemWriter, save

from corerl.contracts.config import ModelConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.objective import PolicyObjective
from corerl_distill.columns import column, column_name
from corerl_distill.loss import distill
from corerl_distill.of_logits import OfTeachers
from corerl_distill.options import DistillOptions, TeacherOptions
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_megatron import background, gathering, model, parallel
from corerl_megatron.arithmetic import ModelFacts
from corerl_megatron.options import MegatronOptions
from corerl_megatron.strategy import MegatronStrategy
from corerl_megatron.weights import Weights
from corerl_testing.training_ranks import AllOutputs, RankJobs, part, rank_batch, share
from corerl_testing.training_reference import copied_weights
from corerl_torch import lora
from corerl_torch import ranks as world
from corerl_torch.host_memory import HostBlock
from corerl_torch.loading import load_model
from corerl_torch.weights.names import as_in_files, saved_buffers

sys.path.insert(0, str(Path(__file__).parents[2] / "corerl_fsdp" / "tests"))
from rank_jobs import chosen_experts


class Jobs(RankJobs):
    """``torch`` where a job has no ``layout``; its ``options`` are laid over that."""

    def strategy(self, job):
        if "layout" not in job:
            return SingleDeviceStrategy(self.spec(job), TorchOptions(logits_chunk_size=None))
        options = {"logits_chunk_size": 3, **job["layout"], **job.get("options", {})}
        return MegatronStrategy(self.spec(job), MegatronOptions(**options))

    def record_gradient(self, strategy, seen):
        megatron = isinstance(strategy, MegatronStrategy)
        of, method = (strategy.optimizer, "step") if megatron else (strategy, "_step")
        take_step = getattr(of, method)

        def step():
            if megatron:
                found = (strategy.adapted or strategy.weights_table).stream(strategy.optimizer.gradient)
            else:
                found = ((name, each.grad) for name, each in lora.trained(strategy.model))
            seen.update((name, gradient.detach().cpu().clone()) for name, gradient in found)
            return take_step()

        setattr(of, method, step)

    def adapt(self, job):
        """Adapters after updates, and log-probs with and without them."""
        strategy, limit = self.strategy(job), MicroBatching(max_sequences=2)
        experience = share(rank_batch(), strategy)
        for _ in range(2):
            strategy.update(experience, AllOutputs())
        with strategy.base(limit):
            base = strategy.forward(experience, ["log_probs"]).log_probs
        adapted = strategy.forward(experience, ["log_probs"]).log_probs
        if "export" in job:
            strategy.export(Path(job["export"]))
        sent = {name: each.detach().clone() for name, each in strategy.adapters(torch.float32)}
        return {"sent": sent, "base": base, "adapted": adapted, "weights": copied_weights(strategy)}

    def distill(self, job):
        """The gradient of an update that a teacher's hidden states teach, through the strategy's own output layer."""
        strategy, batch = self.strategy(job), rank_batch()
        width = strategy.forward(batch, ["hidden_states"]).hidden_states.shape[2]
        hidden = 20 * torch.randn(int(batch.response_mask.sum()), width, generator=torch.Generator().manual_seed(3))
        batch.columns[column_name("self", "values")] = column(
            batch, torch.arange(len(batch)), batch.response_mask, hidden
        )
        batch.old_log_probs = batch.advantages = torch.zeros(batch.response_mask.shape)
        options = DistillOptions(teachers={"self": TeacherOptions(weights="policy", context="")}, divergence="jsd")
        of_logits = OfTeachers(options, 0.7, {"self": None})
        objective = PolicyObjective(functools.partial(distill, options=options), of_logits=of_logits)
        gradient = {}
        self.record_gradient(strategy, gradient)
        return {"loss": strategy.update(share(batch, strategy), objective)["pg_loss"].value, "gradient": gradient}

    def through_mbridge(self, job):
        """Whether weights are those of the model's file once mbridge has read them, and once it gives them out."""
        strategy = self.strategy({**job, "options": {"use_mbridge": True}, "config": {"load_format": "auto"}})
        loaded = load_model(ModelConfig(job["model"], dtype="fp32"), "lm", device="cpu", dtype=torch.float32)
        true = dict(as_in_files(loaded.config, loaded.named_parameters()))

        def same(stream):
            found = {name: tensor.clone() for name, tensor in stream}
            return found.keys() == true.keys() and all(torch.equal(each, true[name]) for name, each in found.items())

        return {"read": same(strategy.weights_table.stream()), "given": same(strategy.weights())}

    def replay(self, job):
        """Outputs and gradients of megatron-core and of ``torch``, with experts that the routers choose, or replayed.

        megatron-core's experts run on the CPU, if the CPU is the device that their routers call the current one.
        """
        spec = self.spec(job)
        options = MegatronOptions(logits_chunk_size=3, **job["layout"])
        meta = load_model(spec.model, "lm", device="meta", dtype=torch.float32)
        facts = ModelFacts.read("model.path", meta.config.to_dict())
        ranks = parallel.lay_out("cpu", options, "actor.strategy")
        true = SingleDeviceStrategy(spec, TorchOptions(logits_chunk_size=None))
        disturb(true.model)
        with no_device_but_the_cpu():
            (piece,) = model.build(spec, options, ranks, facts, meta)
            weights = filled([piece], facts, meta, ranks, true.model)
            for layer in piece.decoder.layers:
                if hasattr(layer.mlp, "router"):  # before 0.19 it needs Transformer Engine
                    layer.mlp.router.gating = functools.partial(_gating, layer.mlp.router)
            batch, found = rank_batch(), {"log_probs": 0.0}
            if job["experts"] is not None:
                batch.columns["experts"] = chosen_experts(batch, *job["experts"])
            objective = AllOutputs()
            for rows in torch.arange(len(batch)).split(3):
                own = batch.select(rows)
                outputs = piece(own, objective.wanted)
                objective(outputs, own).loss.backward()
                expected = true.token_model(own, objective.wanted)
                objective(expected, own).loss.backward()
                found["log_probs"] = max(found["log_probs"], _apart(outputs.log_probs, expected.log_probs))
        named = ((name, _gradient(each)) for name, each in true.model.named_parameters())
        truth = dict(as_in_files(true.model.config, named))
        gradient = {name: each.clone() for name, each in weights.stream(_gradient)}
        if options.context_parallel_size > 1:
            for each in gradient.values():
                torch.distributed.all_reduce(each)
        found["keys"] = gradient.keys() == truth.keys()
        found["gradient"] = {name: _apart(each, truth[name]) for name, each in gradient.items()}
        found["size"] = {name: float(each.norm()) for name, each in truth.items()}
        return found

    def round_trip(self, job):
        """Weights in and out of a model that is not run: so with layouts, too, that the CPU has no schedule for."""
        options = MegatronOptions(**job["layout"])
        named = ModelConfig(path=job["model"], load_format="dummy", dtype="fp32")
        spec = StrategySpec(named, "cpu", MicroBatching(max_sequences=1), head=job.get("head", "lm"))
        meta = load_model(named, spec.head, device="meta", dtype=torch.float32)
        facts = ModelFacts.read("model.path", meta.config.to_dict())
        ranks = parallel.lay_out("cpu", options, "actor.strategy")
        with no_device_but_the_cpu():
            pieces = model.build(spec, options, ranks, facts, meta)
        loaded = load_model(named, spec.head, device="cpu", dtype=torch.float32)
        disturb(loaded)
        weights_table = filled(pieces, facts, meta, ranks, loaded, spec.head)
        source = in_files(loaded)
        streamed = {name: tensor.clone() for name, tensor in weights_table.stream()}
        streamed |= {name: tensor.clone() for name, tensor in weights_table.stream_buffers()}
        for piece in () if weights_table.stacked else weights_table.held(None):
            assert torch.equal(part(source[piece.name], piece.box), piece.tensor), piece.name
        if folder := job.get("save"):
            write_as_megatron(pieces, folder)
        same = all(torch.equal(tensor, source[name]) for name, tensor in streamed.items())
        return {"same": same and streamed.keys() == source.keys(), "own": len(weights_table.parameters)}

    def behind(self, job):
        """A checkpoint that is written while the weights change: is it of the weights as they were?"""
        named = ModelConfig(path=job["model"], load_format="dummy", dtype="fp32")
        spec = StrategySpec(named, "cpu", MicroBatching(max_sequences=1))
        meta = load_model(named, "lm", device="meta", dtype=torch.float32)
        facts = ModelFacts.read("model.path", meta.config.to_dict())
        options = MegatronOptions(**job["layout"])
        ranks = parallel.lay_out("cpu", options, "actor.strategy")
        with no_device_but_the_cpu():
            pieces = model.build(spec, options, ranks, facts, meta)
        loaded = load_model(named, "lm", device="cpu", dtype=torch.float32)
        disturb(loaded)
        filled(pieces, facts, meta, ranks, loaded)
        folder, begun, released = Path(job["save"]), threading.Event(), threading.Event()
        write_data = FileSystemWriter.write_data

        def write(*arguments):
            begun.set()
            released.wait(60)
            if job.get("fails"):
                raise OSError(28, "No space left on device")
            return write_data(*arguments)

        with mock.patch.object(FileSystemWriter, "write_data", write):
            state = {f"model{number}": piece.sharded_state_dict() for number, piece in enumerate(pieces)}
            write_all = background.Copies(world.WritingGroups(60.0)).save(lambda _: state, folder)
            raised = [""]

            def finish():
                try:
                    write_all()
                except BaseException as error:  # torch's CheckpointException is no Exception
                    raised[0] = f"{type(error).__name__}: {error}"

            writing = threading.Thread(target=finish)
            writing.start()
            begun.wait(60)
            for piece in pieces:
                for each in itertools.chain(piece.parameters(), piece.buffers()):
                    each.data.zero_()
            half = sorted(each.name for each in folder.iterdir())
            released.set()
            writing.join(60)
        torch.distributed.barrier()
        return {"half": half, "raised": raised[0]}

    def gather_state(self, job):
        """The state of a distributed optimizer whose buffers have two buckets, with padding: by megatron-core, and by
        CoreRL in parts of ``job["part"]`` elements; and whether the memory of both of CoreRL's is the same.
        """
        optimizer, memory = distributed_optimizer(torch.distributed.group.WORLD), HostBlock()
        with gathering.gathered_on_device([optimizer], memory):  # of which nothing is gathered
            assert not memory.of(0).untyped_storage().size()
        own = DistributedOptimizer.get_parameter_state_dp_zero(optimizer, True, return_on_all_ranks=True)
        places = set()
        for _ in range(2):
            with mock.patch.object(gathering, "PART", job["part"]), gathering.gathered_on_device([optimizer], memory):
                ours = optimizer.get_parameter_state_dp_zero(use_gloo_comm=False, return_on_all_ranks=True)
            places |= {ours[number][torch.float32]["param"].untyped_storage().data_ptr() for number in (0, 1)}
        assert not hasattr(optimizer, "get_parameter_state_dp_zero"), "megatron-core's own function is not back"
        return {"own": own, "ours": ours, "same": places == {memory.of(0).untyped_storage().data_ptr()}}


def distributed_optimizer(group):
    """What a DistributedOptimizer of megatron-core, which needs CUDA, has for its checkpoints: two buffers."""
    rank, buffers = torch.distributed.get_rank(), []
    for sizes in (((5, 7), (9,)), ((3,), (2, 11, 4))):
        buckets, index, end = [], {}, 0
        for number, bucket in enumerate(sizes):
            first, unpadded = end, sum(bucket)
            for size in bucket:
                index[torch.nn.Parameter(torch.zeros(size))] = (end, end + size, number)
                end += size
            end = first + unpadded + -unpadded % 16
            buckets.append(SimpleNamespace(grad_data=torch.zeros(end - first), offset=first, numel_unpadded=unpadded))
        buffers.append(
            SimpleNamespace(
                buckets=buckets,
                param_index_map=index,
                numel_unpadded=sum(each.numel_unpadded for each in buckets),
                data_parallel_group=group,
                num_optimizer_shards=None,
            )
        )
    ranges = [
        {torch.float32: [DistributedOptimizer._build_model_gbuf_range(each, number) for number in range(2)]}
        for each in buffers
    ]
    generator, states = torch.Generator().manual_seed(rank), {}
    for of_buffer in ranges:
        for of_bucket in of_buffer[torch.float32]:
            for parameter, place in of_bucket["param_map"].items():
                size = place["gbuf_local"].size
                states[parameter] = {
                    name: torch.rand(size, generator=generator) for name in ("param", *gathering.MOMENTS)
                }
    return SimpleNamespace(
        gbuf_ranges=ranges,
        buffers=buffers,
        optimizer_state_keys=gathering.MOMENTS,
        data_parallel_group=group,
        data_parallel_group_gloo=group,
        _get_main_param_and_optimizer_states=states.__getitem__,
    )


def no_device_but_the_cpu():
    """For routers of megatron-core, which put their weights on the current CUDA device."""
    return mock.patch.object(torch.cuda, "current_device", lambda: "cpu")


@torch.no_grad()
def disturb(model):
    """Give every buffer of the model's files and every bias values that matter; first they are zeros."""
    biases = [each for name, each in model.named_parameters() if name.endswith("bias")]
    for each in (*(buffer for _, buffer in saved_buffers(model)), *biases):
        each.copy_(torch.randn(each.shape, generator=torch.Generator().manual_seed(2)) * 0.2)


def in_files(model):
    """The model's weights and buffers by their names in files."""
    named = itertools.chain(as_in_files(model.config, model.named_parameters()), saved_buffers(model))
    return {name: each.detach() for name, each in named}


def filled(pieces, facts, meta, ranks, loaded, head="lm"):
    """The table of the weights of ``pieces``, which get those of ``loaded``."""
    weights = Weights(pieces, facts, meta, ranks, head)
    source = in_files(loaded) if torch.distributed.get_rank() == 0 else None
    weights.fill(source, "cpu", torch.float32)
    weights.fill_buffers(source, "cpu")
    return weights


def _gating(router, states):
    bias = None if getattr(router, "bias", None) is None else router.bias.float()
    return torch.nn.functional.linear(states.float(), router.weight.float(), bias)


def _gradient(parameter):
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _apart(given, true):
    return float((given - true).abs().max())


def write_as_megatron(pieces, folder):
    """A checkpoint of megatron-core's format, by its planner and, for want of CUDA, by torch's writer."""
    state = {f"model{number}": piece.sharded_state_dict() for number, piece in enumerate(pieces)}
    sharded, _ = save_preprocess(state)
    by_key, _, _ = library._replace_state_dict_keys_with_sharded_keys(sharded, True)
    planner = library.MCoreSavePlanner(flatten_state_dict=False)
    save(library.mcore_to_pyt_state_dict(by_key, False), storage_writer=FileSystemWriter(folder), planner=planner)


run = Jobs()
