"""Operations of the engine's workers, each with its share of the model, beyond those of vLLM."""

import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from corerl_engine import pieces, recorder, weights
from corerl_engine.digest import digests
from vllm.config import set_current_vllm_config
from vllm.distributed.parallel_state import get_pp_group, get_world_group
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from corerl_vllm_engine import invariant, log_probs
from corerl_vllm_engine.adapter import Adapter

invariant.keep_plain_weights()  # vLLM imports this module before it loads the model

logger = logging.getLogger(f"vllm.{__name__}")

SECOND_RUNNER = "vllm.v1.worker.gpu.model_runner"

AS_LOADED = ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")
"""methods of layers that, on CUDA, use their weights unchanged"""


class Worker:
    """Methods that vLLM adds to its own worker class (``worker_extension_cls``), called by ``collective_rpc``."""

    model_runner: Any
    vllm_config: Any
    device: Any
    rank: int

    corerl_place: int
    """among all workers of the engine"""

    corerl_adapters: Sequence[Adapter] = ()
    corerl_found: pieces.Found | None = None
    corerl_receiver: pieces.Receiver | None = None
    """of updates in pieces"""

    def corerl_prepare(self, keeps: bool, bitwise: bool = False, adapter: dict[str, Any] | None = None) -> list[str]:
        """Prepare the worker once, after the start; returns the CUDA devices that this worker sees.

        Args:
            keeps: the kept tokens are recorded.
            bitwise: the model computes with invariant operations.
            adapter: facts of the adapters that updates consist of; None: they consist of all weights.
        """
        parallel = self.vllm_config.parallel_config
        self.corerl_place = parallel.data_parallel_rank * parallel.world_size + self.rank
        if parallel.nnodes > 1:
            weights.of_nodes(get_world_group().device_group)
        if bitwise and self.device.type == "cpu":  # on a GPU, before graphs are recorded: see GpuWorker
            invariant.use_in(self)
        if adapter is not None:
            manager = self.model_runner.lora_manager
            self.corerl_adapters = [Adapter(manager, adapter, number) for number in range(adapter["count"])]
        if getattr(self.model_runner, "intermediate_tensors", ()) is None and not get_pp_group().is_first_rank:
            self._corerl_take_hidden_states()
        if (sampler := getattr(self.model_runner, "sampler", None)) is not None:
            log_probs.prepare(sampler, keeps, bitwise)
            self._corerl_step_quickly(samples=not keeps and not bitwise)
        self.corerl_in_place = self.device.type == "cuda" and can_load_in_place(self._corerl_model())
        devices: list[str] = weights.visible_devices()
        return devices

    def corerl_begin_update(self) -> None:
        """Discard the state of an incomplete update, and expect all weights; an adapter needs no beginning."""
        model = self._corerl_model()
        self.corerl_names = names_of(model)
        self.corerl_loaded: set[str] = set()
        if self.corerl_receiver is not None:
            with torch.no_grad():
                self.corerl_receiver.begin()
        if not self.corerl_in_place:
            if self.device.type == "cpu":
                pack_experts_again(model)
            with self._corerl_loading():
                initialize_layerwise_reload(model)
            self.corerl_names &= names_of(model)  # without those of quantised layers, such as scales

    def corerl_load(self, bucket: dict[str, Any], verify: bool) -> list[int]:
        """Load a bucket's tensors; returns their digests if requested.

        If vLLM keeps the tensors of a layer until the layer is complete, it gets copies.
        """
        if self.corerl_adapters:
            with torch.inference_mode():
                given = list(self.corerl_adapters[bucket["adapter"]].add(bucket))
        else:
            tensors = list(weights.read(bucket))
            given = [tensor for _, tensor in tensors]
            if not self.corerl_in_place:
                tensors = [(name, tensor.to(self.device, copy=True)) for name, tensor in tensors]
            with self._corerl_loading():
                loaded = self._corerl_model().load_weights(iter(tensors))
            self.corerl_loaded |= set(map(as_reported, loaded or ()))
        taken = digests(given).tolist() if verify else []
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # the bucket is reused
        return taken

    def corerl_needs(self, named: list[list[Any]]) -> dict[str, Any] | None:
        """The boxes of each weight (name, shape, dtype) that this worker loads; None: its loader reads values."""
        model = self._corerl_model()
        try:
            with self._corerl_loading(), unused(model, self.vllm_config.model_config, self.corerl_in_place):
                found = self.corerl_found = pieces.find(model.load_weights, named)
        except Exception:  # of a loader that computes with values, which there are none of: see the log
            traceback.print_exc()
            return None
        boxes: dict[str, Any] = found.reads.boxes
        return boxes

    def corerl_expect(self, plans: list[dict[str, Any]]) -> None:
        """Open the memory in which this worker's rounds arrive."""
        assert self.corerl_found is not None
        self.corerl_receiver = pieces.Receiver(
            self.corerl_found, plans[self.corerl_place], self.corerl_in_place, self.device, digests
        )

    def corerl_take(self, number: int, places: list[list[int]], verify: bool) -> list[str]:
        """Load a round of pieces; returns the names of those that have changed on the way."""
        assert self.corerl_receiver is not None
        with self._corerl_loading():
            changed, loaded = self.corerl_receiver.take(number, *places[self.corerl_place], verify=verify)
        self.corerl_loaded |= set(map(as_reported, loaded))
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # the memory is reused
        names: list[str] = changed
        return names

    def corerl_end_update(self, complete: bool, adapter: int = 0) -> list[str]:
        """End an update; returns vLLM's names of weights that were not loaded, or of layers that it does not have."""
        if self.corerl_adapters:
            with torch.inference_mode():
                return self.corerl_adapters[adapter].end(complete)
        if not self.corerl_in_place:
            with self._corerl_loading():
                finalize_layerwise_reload(self._corerl_model(), self.vllm_config.model_config)
                pack_tied_layers_again(self._corerl_model())
        if complete and hasattr(self.model_runner, "reset_lora_state"):
            self.model_runner.reset_lora_state()
        return sorted(self.corerl_names - self.corerl_loaded)

    def corerl_start_profile(self, asked: dict[str, Any], name: str) -> None:
        """Begin a profile of this process."""
        self.corerl_profile = f"{name}-worker{self.corerl_place}"
        recorder.start(self.corerl_profile, asked)

    def corerl_stop_profile(self, rank: int) -> None:
        """End it, and write its files."""
        recorder.stop(self.corerl_profile, rank)

    def _corerl_step_quickly(self, samples: bool) -> None:
        """Use this package's steps, and its sampling if ``samples``, in vLLM's second model runner on CUDA; with vLLM's
        own scheduler, none of them.
        """
        has_own_scheduler = self.vllm_config.scheduler_config.scheduler_cls is None
        if type(self.model_runner).__module__ == SECOND_RUNNER and not has_own_scheduler:
            from corerl_vllm_engine import sampling, steady  # kernels of triton

            own = {
                "steps": steady.use_in(self.model_runner),
                "sampling": samples and sampling.use_in(self.model_runner),
            }
            logger.info("of corerl-vllm: %s", ", ".join(name for name in own if own[name]) or "no steps, no sampling")

    def _corerl_take_hidden_states(self) -> None:
        """Memory for the hidden states of the stage before, which vLLM makes in a warm-up that a CPU without compiled
        code skips."""
        runner = self.model_runner
        runner.intermediate_tensors = self._corerl_model().make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens, dtype=self.vllm_config.model_config.dtype, device=self.device
        )

    def _corerl_model(self) -> Any:
        return self.model_runner.get_model()

    def _corerl_loading(self) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(torch.no_grad())
        stack.enter_context(set_current_vllm_config(self.vllm_config))
        stack.enter_context(torch.device(self.device))
        return stack


@contextmanager
def unused(model: Any, config: Any, in_place: bool) -> Iterator[None]:
    """Within, the parameters have the shapes of files, and their loaders load at once; afterwards they are as before.

    Args:
        in_place: they have these shapes at all times.
    """
    if in_place:
        yield
        return
    initialize_layerwise_reload(model)
    for parameter in (each for layer in model.modules() for each in layer._parameters.values() if each is not None):
        loader: Any = getattr(parameter, "weight_loader", None)
        while getattr(loader, "__name__", "") == "online_process_loader":
            loader = loader.__wrapped__
            parameter.weight_loader = loader
    reload = logging.getLogger(initialize_layerwise_reload.__module__)
    level = reload.level
    reload.setLevel(logging.ERROR)  # it would warn of every layer without weights
    try:
        yield
    finally:
        finalize_layerwise_reload(model, config)
        reload.setLevel(level)


def names_of(model: Any) -> set[str]:
    """The names of its parameters, as reported by ``load_weights``; a tied parameter has one."""
    return {as_reported(name) for name, _ in model.named_parameters()}


def as_reported(name: str) -> str:
    """The name of a parameter as returned by ``load_weights``: some releases omit a level of experts' names."""
    return name.replace(".routed_experts.", ".")


def can_load_in_place(model: Any) -> bool:
    """Whether no layer transforms its weights after loading, as quantised layers, experts and MLA do."""
    for layer in model.modules():
        method = getattr(layer, "quant_method", None)
        if method is not None and type(method).__name__ not in AS_LOADED:
            return False
        if any("MLA" in kind.__name__ for kind in type(layer).__mro__):
            return False
    return True


def pack_experts_again(model: Any) -> None:
    """Let the CPU's kernels pack the experts of later weights too; vLLM does so only for the first weights."""
    for layer in model.modules():
        method: Any = getattr(layer, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None


def pack_tied_layers_again(model: Any) -> None:
    """Repeat the packing of a shared weight for the CPU's kernels: vLLM's reload does so for only one of its layers."""
    owners: dict[int, list[Any]] = {}
    for layer in model.modules():
        if hasattr(layer, "cpu_linear") and layer._parameters.get("weight") is not None:
            owners.setdefault(id(layer.weight), []).append(layer)
    for layers in owners.values():
        for layer in layers if len(layers) > 1 else ():
            layer.quant_method.process_weights_after_loading(layer)
