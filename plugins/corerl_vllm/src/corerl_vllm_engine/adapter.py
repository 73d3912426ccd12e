"""The one adapter of an engine that holds its base: every request uses it, and an update replaces it in place."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.request import LoRARequest

NUMBER = 1
"""vLLM's id of the adapter"""

REQUEST = LoRARequest("policy", NUMBER, "in memory")
"""of every sample; vLLM reads no file, because the adapter is there already"""


class Adapter:
    """The adapter of a worker's share of the model; without values until the first update, which changes nothing.

    Args:
        manager: vLLM's, of the worker.
        facts: ``rank``, ``alpha`` and ``rslora``.
    """

    def __init__(self, manager: Any, facts: Mapping[str, Any]) -> None:
        self._worker, self._manager, self._facts = manager, manager._adapter_manager, facts
        self._coming: dict[str, Tensor] = {}
        manager.add_dummy_lora(REQUEST, facts["rank"])  # zeros
        self._manager.activate_adapter(NUMBER)

    def begin(self) -> None:
        """Forget an incomplete update."""
        self._coming = {}

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Tensors by their names in files of peft, which belong to the adapter from now on."""
        self._coming.update(tensors)

    def end(self, complete: bool) -> list[str]:
        """Replace the adapter, if the update is complete; returns layers that the model does not have."""
        coming, self._coming = self._coming, {}
        if not complete:
            return []
        facts, mapper = self._facts, getattr(self._manager.model, "hf_to_vllm_mapper", None)
        helper = PEFTHelper(facts["rank"], facts["alpha"], list(facts["layers"]), use_rslora=facts["rslora"])
        made = LoRAModel.from_lora_tensors(
            NUMBER,
            coming,
            helper,
            device=str(self._worker.device),
            dtype=self._worker.lora_config.lora_dtype,
            weights_mapper=None if mapper is None else _renaming(mapper),
        )
        packed = self._manager.packed_modules
        known = {*self._manager.modules, *(name for names in packed.values() for name in names)}
        unknown = sorted(name for name in made.loras if name not in known)
        if not unknown:
            self._put(made)
        return unknown

    def _put(self, made: Any) -> None:
        self._manager.remove_adapter(NUMBER)
        self._manager.add_adapter(made)
        self._manager.activate_adapter(NUMBER)


def _renaming(mapper: Any) -> Any:
    """The renaming of modules without the joining of layers, as named by releases up to 0.26 and by later ones."""
    return mapper.get_unstacked_mapper() if hasattr(mapper, "get_unstacked_mapper") else mapper.get_rename_mapper()
