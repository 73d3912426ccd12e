"""An adapter of an engine that holds its base: every request uses one, and an update replaces one in place.

vLLM takes hundreds of small tensors apart, by name, for each adapter. Here it does so once: the copies that it makes
from the bucket to its layers are noted, and a later update of the same tensors repeats them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from corerl_engine import weights
from corerl_engine.copies import Copies
from torch import Tensor
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.request import LoRARequest
from vllm.model_executor.models.utils import is_pp_missing_parameter


def named(number: int) -> LoRARequest:
    """For samples of the adapter of this number, from 0; vLLM reads no file, because the adapter is there already.

    vLLM keeps the prefixes of adapters of different names apart.
    """
    return LoRARequest(f"policy {number}", 1 + number, "in memory")


class Adapter:
    """An adapter of a worker's share of the model; without values until the first update, which changes nothing.

    vLLM has room for all adapters at once, so each one keeps its place in vLLM's layers.

    Args:
        manager: vLLM's, of the worker.
        facts: ``rank``, ``alpha`` and ``rslora``.
        number: of the adapter, from 0.
    """

    def __init__(self, manager: Any, facts: Mapping[str, Any], number: int) -> None:
        self._id = named(number).lora_int_id
        self._worker, self._manager, self._facts = manager, manager._adapter_manager, facts
        self._buckets: list[weights.Held] = []
        self._coming = 0
        """number of buckets of the update under way"""
        self._copies: Copies | None = None
        """those of the buckets, once noted"""
        manager.add_dummy_lora(named(number), facts["rank"])  # zeros
        self._manager.activate_adapter(self._id)

    def add(self, bucket: Mapping[str, Any]) -> Iterable[Tensor]:
        """Keep a bucket's tensors, by their names in files of peft; returns them."""
        if self._coming == len(self._buckets):
            self._buckets.append(weights.Held())
        held, self._coming = self._buckets[self._coming], self._coming + 1
        if not held.take(bucket, self._worker.device):
            self._copies = None
        tensors: dict[str, Tensor] = held.tensors
        return tensors.values()

    def end(self, complete: bool) -> list[str]:
        """Replace the adapter, if the update is complete; returns layers that the model does not have."""
        coming, self._coming = self._coming, 0
        if not complete:
            return []
        if coming != len(self._buckets):
            self._copies, self._buckets = None, self._buckets[:coming]
        if self._copies is not None:
            self._copies.repeat()
            return []
        facts, mapper = self._facts, getattr(self._manager.model, "hf_to_vllm_mapper", None)
        helper = PEFTHelper(facts["rank"], facts["alpha"], list(facts["layers"]), use_rslora=facts["rslora"])
        made = LoRAModel.from_lora_tensors(
            self._id,
            {name: tensor for held in self._buckets for name, tensor in held.tensors.items()},
            helper,
            device=str(self._worker.device),
            dtype=self._worker.lora_config.lora_dtype,
            weights_mapper=None if mapper is None else _renaming(mapper),
        )
        made.is_3d_lora_weight = True  # peft's pairs of stacked experts, which vLLM takes apart; no matter for layers
        packed, modules = self._manager.packed_modules, self._manager.modules
        known = {*modules, *(name for names in packed.values() for name in names)}
        known |= {f"{name}.base_layer" for name in modules if name.endswith(".experts")}
        model = self._manager.model
        unknown = sorted(name for name in made.loras if name not in known and not is_pp_missing_parameter(name, model))
        if not unknown:
            self._put(made)
        return unknown

    def _put(self, made: Any) -> None:
        self._manager.remove_adapter(self._id)
        noted = Copies([held.memory for held in self._buckets])
        with noted:
            self._manager.add_adapter(made)
            self._manager.activate_adapter(self._id)
        self._copies = noted if noted.is_whole else None


def _renaming(mapper: Any) -> Any:
    """The renaming of modules without the joining of layers, as named by releases up to 0.26 and by later ones."""
    return mapper.get_unstacked_mapper() if hasattr(mapper, "get_unstacked_mapper") else mapper.get_rename_mapper()
