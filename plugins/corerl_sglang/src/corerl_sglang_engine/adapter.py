"""The adapters of a scheduler whose engine holds the base: every request uses one, and an update replaces one."""

from collections.abc import Mapping
from typing import Any

from sglang.srt.lora.lora_registry import LoRARef
from torch import Tensor

from corerl_sglang_engine.requests import adapter_config


def named(number: int) -> str:
    """SGLang's id, name and path of an adapter, from number 0; also the key under which SGLang keeps its prefixes."""
    return f"policy {number}"


class Adapters:
    """The adapters of a scheduler's share of the model.

    Args:
        manager: SGLang's, of the model runner.
        facts: ``rank``, ``alpha``, ``rslora`` and ``layers``.
    """

    def __init__(self, manager: Any, facts: Mapping[str, Any]) -> None:
        self._manager, self._facts = manager, facts
        self._coming: dict[str, Tensor] = {}
        self._loaded: dict[str, LoRARef] = {}

    def begin(self) -> None:
        """Forget an incomplete update."""
        self._coming = {}

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Tensors by their names in files of peft, which belong to the adapter from now on."""
        self._coming.update(tensors)

    def of(self, key: str | None) -> str | None:
        """SGLang's id of the adapter of requests with this key; None, which is the base, before its first update."""
        return key if key in self._loaded else None

    def end(self, complete: bool, number: int) -> None:
        """Replace an adapter, if the update is complete.

        Raises:
            RuntimeError: SGLang refuses the adapter.
        """
        coming, self._coming = self._coming, {}
        if not complete:
            return
        name = named(number)
        if (old := self._loaded.pop(name, None)) is not None:
            _require(self._manager.unload_lora_adapter(old))
        made = LoRARef(lora_id=name, lora_name=name, lora_path=name, pinned=False)
        _require(self._manager.load_lora_adapter_from_tensors(made, coming, adapter_config(self._facts)))
        self._loaded[name] = made


def _require(result: Any) -> None:
    if not result.success:
        raise RuntimeError(f"SGLang refuses the adapter: {result.error_message}")
