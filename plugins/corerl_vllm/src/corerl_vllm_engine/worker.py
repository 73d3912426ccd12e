"""What the engine's workers, each with its share of the model, do beside what vLLM has them do."""

import mmap
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from corerl_vllm_engine.log_probs import report_before_filtering


class Worker:
    """Methods that vLLM adds to its own worker class (``worker_extension_cls``), called by ``collective_rpc``."""

    model_runner: Any
    vllm_config: Any
    device: Any

    def corerl_prepare(self) -> None:
        """Once, after the start."""
        if (sampler := getattr(self.model_runner, "sampler", None)) is not None:
            report_before_filtering(sampler)

    def corerl_begin_update(self) -> None:
        """Let go of what an update that did not complete left behind, and expect all weights."""
        model = self._corerl_model()
        self.corerl_names = {name for name, _ in model.named_parameters()}
        self.corerl_loaded: set[str] = set()
        with set_current_vllm_config(self.vllm_config), torch.device(self.device):
            initialize_layerwise_reload(model)

    def corerl_load(self, path: str, tensors: list[dict[str, Any]]) -> dict[str, int]:
        """Load the tensors in a file.

        Args:
            tensors: ``name``, ``dtype``, ``shape`` and ``offset`` of each; ``verify`` asks for its checksum.

        Returns:
            The checksums that were asked for, by name.
        """
        checksums: dict[str, int] = {}
        with set_current_vllm_config(self.vllm_config), torch.device(self.device):
            loaded = self._corerl_model().load_weights(self._corerl_read(path, tensors, checksums))
        self.corerl_loaded |= set(loaded or ())
        return checksums

    def corerl_end_update(self, complete: bool) -> list[str]:
        """End an update; the names, vLLM's own, of weights that nothing was loaded for."""
        with set_current_vllm_config(self.vllm_config), torch.device(self.device):
            finalize_layerwise_reload(self._corerl_model(), self.vllm_config.model_config)
            pack_tied_layers_again(self._corerl_model())
        if complete and hasattr(self.model_runner, "reset_lora_state"):
            self.model_runner.reset_lora_state()
        return sorted(self.corerl_names - self.corerl_loaded)

    def _corerl_model(self) -> Any:
        return self.model_runner.get_model()

    def _corerl_read(
        self, path: str, tensors: list[dict[str, Any]], checksums: dict[str, int]
    ) -> Iterator[tuple[str, Any]]:
        """Copies, since vLLM keeps the tensors of a layer until the last one has come."""
        with Path(path).open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        for tensor in tensors:
            dtype: torch.dtype = getattr(torch, tensor["dtype"])
            count = torch.Size(tensor["shape"]).numel()
            flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=tensor["offset"])
            copied = flat.view(tensor["shape"]).to(self.device, copy=True)
            if tensor["verify"]:
                raw: Any = copied.cpu().flatten().view(torch.uint8).numpy()
                checksums[tensor["name"]] = zlib.crc32(raw)
            yield tensor["name"], copied


def pack_tied_layers_again(model: Any) -> None:
    """Repeat what the CPU's kernels keep beside a shared weight: vLLM's reload does so for one of its layers only."""
    owners: dict[int, list[Any]] = {}
    for layer in model.modules():
        if hasattr(layer, "cpu_linear") and layer._parameters.get("weight") is not None:
            owners.setdefault(id(layer.weight), []).append(layer)
    for layers in owners.values():
        for layer in layers if len(layers) > 1 else ():
            layer.quant_method.process_weights_after_loading(layer)
