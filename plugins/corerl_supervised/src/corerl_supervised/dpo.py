"""Direct preference optimization: a preference loss of the log-ratios of policy and reference.

Rafailov et al. 2023, arXiv 2305.18290. The score of a response is the sum over its tokens of log π - log π_ref.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from corerl.contracts.experience import Experience
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.objective import loss_weights
from corerl.registry import Registries, Selected
from corerl_supervised.config import DpoConfig
from corerl_supervised.data.conversations import ChatEncoder
from corerl_supervised.data.pairs import Pair, load_pairs
from corerl_supervised.objectives import PreferenceObjective
from corerl_supervised.tasks import Rows, batch_of


class DpoTask:
    """See :class:`corerl_supervised.tasks.Task`."""

    head: Literal["lm", "score"] = "lm"

    def __init__(self, config: DpoConfig, registries: Registries) -> None:
        self._config, self._data = config, config.data
        self.reference = None if config.reference_free else config.ref.path or config.model.path
        self.parts: Mapping[str, Selected[Any]] = {"loss": registries.preference_losses.select(config.loss, "loss")}

    def load(self, files: Sequence[str], tokenizer: ChatTokenizer) -> Rows:
        encoder = ChatEncoder(tokenizer, self._data.apply_chat_template_kwargs)
        return Rows(*load_pairs(files, encoder, self._data.max_length))

    def batch(self, rows: Sequence[Pair]) -> Experience:
        return pair_batch(rows, length_normalize=self._config.length_normalize)

    def objective(self) -> PreferenceObjective:
        return PreferenceObjective(self.parts["loss"].load(), sft_coef=self._config.sft_coef)

    def model_config(self, values: dict[str, Any]) -> dict[str, Any]:
        return values


def pair_batch(pairs: Sequence[Pair], *, length_normalize: bool = False) -> Experience:
    """Two rows a pair, the preferred first, with the columns of :mod:`corerl_supervised.objectives`."""
    batch = batch_of([example for pair in pairs for example in (pair.chosen, pair.rejected)])
    batch.group_ids = batch.unit_ids = torch.arange(len(pairs)).repeat_interleave(2)
    mask = batch.response_mask
    batch.advantages = mask / mask.sum(1, keepdim=True) if length_normalize else mask.float()
    batch.advantages[1::2] *= -1
    batch.rewards = torch.zeros(mask.shape)
    batch.rewards[0::2, 0] = torch.tensor([pair.margin for pair in pairs])
    is_chosen = torch.tensor([True, False]).repeat(len(pairs))[:, None]
    batch.loss_weights = loss_weights(mask & is_chosen, "seq-mean-token-mean")
    return batch
