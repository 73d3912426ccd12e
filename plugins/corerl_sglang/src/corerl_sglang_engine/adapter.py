"""The one adapter of a scheduler whose engine holds the base: every request uses it, and an update replaces it."""

from collections.abc import Mapping
from typing import Any

from sglang.srt.lora.lora_registry import LoRARef
from torch import Tensor

from corerl_sglang_engine.requests import adapter_config

NAME = "policy"
"""SGLang's id, name and path of the adapter"""


class Adapter:
    """The adapter of a scheduler's share of the model.

    Args:
        manager: SGLang's, of the model runner.
        facts: ``rank``, ``alpha``, ``rslora`` and ``layers``.

    Attributes:
        number: SGLang's id of the adapter of new requests; None, which is the base, before the first update.
    """

    def __init__(self, manager: Any, facts: Mapping[str, Any]) -> None:
        self._manager, self._facts = manager, facts
        self._coming: dict[str, Tensor] = {}
        self.number: str | None = None

    def begin(self) -> None:
        """Forget an incomplete update."""
        self._coming = {}

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Tensors by their names in files of peft, which belong to the adapter from now on."""
        self._coming.update(tensors)

    def end(self, complete: bool) -> None:
        """Replace the adapter, if the update is complete.

        Raises:
            RuntimeError: SGLang refuses the adapter.
        """
        coming, self._coming = self._coming, {}
        if not complete:
            return
        named = LoRARef(lora_id=NAME, lora_name=NAME, lora_path=NAME)
        if self.number is not None:
            self.number = None
            _require(self._manager.unload_lora_adapter(named))
        _require(self._manager.load_lora_adapter_from_tensors(named, coming, adapter_config(self._facts)))
        self.number = NAME


def _require(result: Any) -> None:
    if not result.success:
        raise RuntimeError(f"SGLang refuses the adapter: {result.error_message}")
