"""Whether a strategy packs the rows of a model: by the probe, with one line if it pads them instead."""

import functools
from dataclasses import dataclass
from typing import Any

from corerl.contracts.config import ModelConfig
from corerl.errors import ConfigError
from corerl.terminal import say
from corerl_torch import tries
from corerl_torch.context_parallel import RowGroup
from corerl_torch.families.probe import Verdict, probe
from corerl_torch.loading import Head
from corerl_torch.media import sees_later_tokens

BIDIRECTIONAL = "tokens of an image attend to its later tokens, and packed rows are causal"

NOT_SLICED = "must be 1: the tokens of a row cannot be divided among ranks"


@dataclass(frozen=True)
class Packing:
    """
    Attributes:
        packs: rows are laid end to end.
        unshared: why rows cannot share prefixes, by the probe; '' if they can.
    """

    packs: bool
    unshared: str = ""

    @classmethod
    def of(
        cls,
        model: Any,
        config: ModelConfig,
        device: str,
        head: Head = "lm",
        *,
        sharing: RowGroup | None,
        share_prefixes: bool | None,
    ) -> "Packing":
        """The packing of a model whose config asks for it; every rank finds the same.

        Args:
            sharing: the ranks that share the tokens of a row.

        Raises:
            ConfigError: ranks shall share rows that cannot be packed or sliced, or rows prefixes without packing.
        """
        if config.attn_implementation == "eager":
            return cls(packs=True)  # refused with its own error
        verdict = verdict_on(model.config, device, head, trust_remote_code=config.trust_remote_code)
        name = type(model).__name__
        if not verdict.packed:
            why = tries.sequential(model.config, name, stateful=getattr(model, "_is_stateful", False))
            if sharing and why:
                raise ConfigError(sharing.key, f"{NOT_SLICED} {why}")
            return cls(packs=True, unshared=verdict.shared)
        if sharing:
            raise ConfigError(
                sharing.key,
                f"{sharing.size} slices packed rows, and those of {name} cannot be packed: {verdict.packed}",
            )
        if share_prefixes:
            raise ConfigError(
                tries.KEY, f"prefixes cannot be shared by {name}, whose rows are padded: {verdict.packed}"
            )
        _tell(f"rows of {name} are padded: packed, they would disturb each other ({verdict.packed})")
        return cls(packs=False)


def verdict_on(config: Any, device: str, head: Head = "lm", *, trust_remote_code: bool = False) -> Verdict:
    """:func:`~corerl_torch.families.probe.probe`, of the text alone, and the image tokens of the family."""
    verdict = probe(config, device, head, trust_remote_code=trust_remote_code)
    if verdict.packed or not sees_later_tokens(config):
        return verdict
    return verdict._replace(packed=BIDIRECTIONAL, shared=BIDIRECTIONAL)


_tell = functools.cache(say)
"""each sentence once in a process"""
