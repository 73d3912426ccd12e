"""Operations of SGLang's schedulers, each with its share of the model, beyond those of SGLang."""

import json
import os
import traceback
from typing import Any

import torch
from corerl_engine import pieces, recorder, weights
from corerl_engine.digest import digests
from sglang.srt.layers.parameter import ModelWeightParameter
from sglang.srt.layers.sampler import Sampler, murmur_hash32
from sglang.srt.layers.utils.multi_platform import MultiPlatformOp
from sglang.srt.managers import mm_utils, scheduler
from sglang.srt.managers.io_struct import PauseGenerationReqInput, RpcReqInput, RpcReqOutput, sock_send
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.state_capturer.routed_experts import RoutedExpertsCapturer

from corerl_sglang_engine import filtering, written
from corerl_sglang_engine.adapter import Adapters
from corerl_sglang_engine.pairs import Pairs
from corerl_sglang_engine.requantized import Requantized
from corerl_sglang_engine.requests import KEEPS
from corerl_sglang_engine.stages import StagedCalls


def run(server_args: Any, *args: Any, **kwargs: Any) -> None:
    """SGLang's ``run_scheduler_process``, with CoreRL's scheduler and the seed of each request."""
    scheduler.Scheduler = Scheduler
    draw_by_seed()
    choose_row_by_row()
    if server_args.dtype == "float32":
        compute_in_torch()
    if server_args.enable_return_routed_experts:
        copy_experts_of_each_step()
    scheduler.run_scheduler_process(server_args, *args, **kwargs)


class Scheduler(scheduler.Scheduler):  # type: ignore[misc]
    """A scheduler whose remote calls are CoreRL's operations; all ranks answer."""

    corerl_preempted = 0
    """number of times so far that a request's cache was taken by others"""

    corerl_pairs: Pairs
    """of the present update"""

    corerl_found: pieces.Found
    corerl_receiver: pieces.Receiver | None = None
    """of updates in pieces"""

    corerl_adapters: Adapters | None = None
    """which updates consist of; None: of all weights"""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model_config.hf_eos_token_id = set()  # only the stop tokens of a request stop it
        if self.max_req_len == self.model_config.context_len - 1:  # the limit is the context, not the cache
            self.max_req_input_len = self.max_req_len - 1  # SGLang's own limit is four lower
        if self.server_args.nnodes > 1:
            weights.of_nodes(self.world_group.device_group)
        if self.ps.tp_rank > 0 and self.ipc_channels.recv_from_rpc is not None:
            self.ipc_channels.recv_from_rpc.close(linger=0)  # of another data parallel rank: the first one reads calls
        self.corerl_staged = StagedCalls(self.ps.pp_rank, self.ps.pp_size)
        self.corerl_requantized = Requantized(self._corerl_model(), ModelWeightParameter)

    def handle_rpc_request(self, recv_req: RpcReqInput) -> RpcReqOutput | None:
        """Run ``corerl_<method>``; the first rank's output has the list of all ranks' answers as its message.

        With stages, SGLang passes a call on to the next stage after this function and before
        :meth:`get_next_batch_to_run`, which therefore runs it, in the round that ``StagedCalls`` chooses: the answers
        of all stages are gathered.
        """
        if self.ps.pp_size > 1:
            self.corerl_staged.add(recv_req)
            return None
        return self._corerl_answer(recv_req)

    def get_next_batch_to_run(self, *args: Any, **more: Any) -> Any:
        for request in self.corerl_staged.due():
            if (output := self._corerl_answer(request)) is not None:
                sock_send(self.ipc_channels.recv_from_rpc, output)
        return super().get_next_batch_to_run(*args, **more)

    def _corerl_answer(self, recv_req: RpcReqInput) -> RpcReqOutput | None:
        answer: dict[str, Any]
        try:
            arguments = json.loads(recv_req.parameters["arguments"])
            answer = {"answer": getattr(self, f"corerl_{recv_req.method}")(**arguments)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers: list[Any] = [None] * self.world_group.world_size
        torch.distributed.all_gather_object(answers, answer, group=self.world_group.cpu_group)
        return None if self.world_group.rank_in_group else RpcReqOutput(success=True, message=json.dumps(answers))

    def corerl_devices(self) -> list[str]:
        """The CUDA devices that this process sees."""
        devices: list[str] = weights.visible_devices()
        return devices

    def corerl_adapt(self, facts: dict[str, Any]) -> None:
        """From now on updates are adapters of these facts, of which every request uses one."""
        self.corerl_adapters = Adapters(self.tp_worker.model_runner.lora_manager, facts)

    def _add_request_to_queue(self, req: Any, *args: Any, **more: Any) -> Any:
        if self.corerl_adapters is not None:
            req.lora_id = self.corerl_adapters.of(req.extra_key)
        self.corerl_preempted += bool(more.get("is_retracted") or any(args))
        return super()._add_request_to_queue(req, *args, **more)

    def corerl_report(self) -> dict[str, float] | None:
        """For ``Engine.report`` of ``corerl_engine.server``; prefixes that nothing uses are no cache in use.

        None: another rank has the same requests, and reports them.
        """
        if self.ps.attn_tp_rank or self.ps.pp_rank:
            return None
        batches = self.running_mbs if self.ps.pp_size > 1 else [self.running_batch]
        try:
            free = self.token_to_kv_pool_allocator.available_size() + self.tree_cache.evictable_size()
        except NotImplementedError:  # models with several kinds of cache
            free = self.max_total_num_tokens
        return {
            "room": self.max_running_requests,
            "running": sum(len(batch.reqs) for batch in batches),
            "waiting": len(self.waiting_queue),
            "preempted": self.corerl_preempted,
            "cache_usage": round(max(0.0, 1 - free / self.max_total_num_tokens), 3),
        }

    def corerl_start_profile(self, asked: dict[str, Any], name: str) -> None:
        """Begin a profile of this process."""
        self.corerl_profile = f"{name}-worker{self.world_group.rank_in_group}"
        recorder.start(self.corerl_profile, asked)

    def corerl_stop_profile(self, rank: int) -> None:
        """End it, and write its files."""
        recorder.stop(self.corerl_profile, rank)

    def corerl_begin_update(self) -> None:
        """Return running requests to the queue; they are computed again from their tokens with the new weights.

        The old weights are erased, so that weights that are not loaded can be found.
        """
        preempted = self.corerl_preempted
        self.pause_generation(PauseGenerationReqInput(mode="retract"))
        self.corerl_preempted = preempted  # by requests alone
        torch.get_device_module().synchronize()
        if self.corerl_adapters is not None:
            self.corerl_adapters.begin()
        else:
            written.forget(self._corerl_model())
            self.corerl_requantized.begin()
            self.corerl_pairs = Pairs(self._corerl_model())
            if self.corerl_receiver is not None:
                with torch.no_grad():
                    self.corerl_receiver.begin()

    def corerl_load(self, bucket: dict[str, Any], verify: bool) -> list[int]:
        """Load a bucket's tensors; returns their digests if requested."""
        if self.corerl_adapters is not None:
            held = weights.Held()
            held.take(bucket, torch.device("cpu"))  # where SGLang keeps adapters that are not in use
            tensors = list(held.tensors.items())
            self.corerl_adapters.add(held.tensors)
        else:
            tensors = list(weights.read(bucket))
            with torch.no_grad():
                self._corerl_model().load_weights(iter(self.corerl_pairs.complete(tensors)))
        taken = digests([tensor for _, tensor in tensors]).tolist() if verify else []
        torch.get_device_module().synchronize()  # the bucket is reused
        return taken

    def corerl_needs(self, named: list[list[Any]]) -> dict[str, Any] | None:
        """The boxes of each weight (name, shape, dtype) that this rank loads; None: its loader reads values."""
        model = self._corerl_model()

        def load(tensors: Any) -> None:
            model.load_weights(iter(Pairs(model).complete(list(tensors))))

        try:
            self.corerl_found = pieces.find(load, named)
        except Exception:  # of a loader that computes with values, which there are none of: see the log
            traceback.print_exc()
            return None
        boxes: dict[str, Any] = self.corerl_found.reads.boxes
        return boxes

    def corerl_expect(self, plans: list[dict[str, Any]]) -> None:
        """Open the memory in which this rank's rounds arrive."""
        model = self._corerl_model()

        def load(tensors: Any) -> None:
            model.load_weights(iter(self.corerl_pairs.complete(list(tensors))))

        found = pieces.Found(load, self.corerl_found.reads, set())
        device = torch.device("cuda", torch.cuda.current_device())
        self.corerl_receiver = pieces.Receiver(found, plans[self.world_group.rank_in_group], True, device, digests)

    def corerl_take(self, number: int, places: list[list[int]], verify: bool) -> list[str]:
        """Load a round of pieces; returns the names of those that have changed on the way."""
        assert self.corerl_receiver is not None
        names: list[str]
        with torch.no_grad():
            names, _ = self.corerl_receiver.take(number, *places[self.world_group.rank_in_group], verify=verify)
        torch.get_device_module().synchronize()  # the memory is reused
        return names

    def corerl_end_update(self, complete: bool, adapter: int) -> dict[str, Any]:
        """Forget all prefixes.

        Returns:
            ``lacking``: SGLang's names of weights that nothing, or not enough, was loaded into; ``tokens``: request id
            -> tokens so far.
        """
        self.tree_cache.reset()
        self.req_to_token_pool.clear()
        self.token_to_kv_pool_allocator.clear()
        if mm_utils.embedding_cache is not None:  # outputs of the tower
            mm_utils.embedding_cache.clear()
        if self.corerl_adapters is not None:
            self.corerl_adapters.end(complete, adapter)
            for each in self.waiting_queue:
                each.lora_id = self.corerl_adapters.of(each.extra_key)
        is_whole = complete and self.corerl_adapters is None
        lacking = written.unwritten(self._corerl_model()) if is_whole else []
        return {"lacking": lacking, "tokens": {each.rid: len(each.output_ids) for each in self.waiting_queue}}

    def corerl_resume(self) -> None:
        self._engine_paused = False

    def _corerl_model(self) -> Any:
        return self.tp_worker.model_runner.model


def compute_in_torch() -> None:
    """Use plain torch for norms, activations and rotations: SGLang's kernels support only half precision."""
    chosen = MultiPlatformOp.dispatch_forward

    def dispatch_forward(self: Any) -> Any:
        has_plain = type(self).forward_native is not MultiPlatformOp.forward_native
        return self.forward_native if has_plain else chosen(self)

    MultiPlatformOp.dispatch_forward = dispatch_forward


def copy_experts_of_each_step() -> None:
    """SGLang copies the experts of a step to the host while the next step may overwrite them on the device."""
    part = RoutedExpertsCapturer._get_local_slice

    def _get_local_slice(self: Any, *args: Any, **more: Any) -> Any:
        return part(self, *args, **more).clone()

    RoutedExpertsCapturer._get_local_slice = _get_local_slice


def draw_by_seed() -> None:
    """Use seeds outside SGLang's deterministic mode, whose kernels are slow; its samplers accept seeds in any mode."""
    original = SamplingBatchInfo.from_schedule_batch.__func__

    def with_seeds(cls: Any, batch: Any, vocab_size: int) -> Any:
        info = original(cls, batch, vocab_size)
        seeds = [request.sampling_params.sampling_seed or 0 for request in batch.reqs]
        info.sampling_seed = torch.tensor(seeds, dtype=torch.int64).to(batch.device, non_blocking=True)
        return info

    SamplingBatchInfo.from_schedule_batch = classmethod(with_seeds)


def choose_row_by_row() -> None:
    """Make the next token of a request depend only on its own limits and seed; of a greedy request, on its logits."""
    preprocess, sample = Sampler._preprocess_logits, Sampler._sample_from_probs
    replaces = os.environ.get(KEEPS) == "1"

    def _preprocess_logits(self: Any, logits: Any, info: Any) -> Any:
        logits = preprocess(self, logits, info)
        self.corerl_best = logits.argmax(dim=-1) if info.is_any_greedy else None
        return logits

    def _sample_from_probs(self: Any, probs: Any, info: Any, positions: Any, simple: bool) -> Any:
        if not len(probs):  # a step of other data parallel ranks, for which a kernel would have no blocks
            return probs.new_empty(0, dtype=torch.int32)
        if info.sampling_seed is None:
            return sample(self, probs, info, positions, simple)
        numbers = murmur_hash32(info.sampling_seed, positions, torch.arange(probs.shape[-1], device=probs.device))
        limits = info.top_ks, info.top_ps, info.min_ps
        chosen = {"limited": not simple, "best": self.corerl_best, "replace": replaces}
        own = probs.float()
        tokens = filtering.choose(own, limits, numbers, **chosen)
        if replaces and own is not probs:
            probs.copy_(own)
        return tokens

    Sampler._preprocess_logits, Sampler._sample_from_probs = _preprocess_logits, _sample_from_probs
