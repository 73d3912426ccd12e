"""Reward models: the reward of a response is a linear function of the last hidden state at its last token.

With preferences P(w ≻ l) = σ(r_w - r_l), the model of Bradley and Terry (1952), as Ouyang et al. (2022, arXiv
2203.02155, equation 1) train it; with scores, a regression. The exported folder is a transformers model for sequence
classification.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from corerl.contracts.experience import Experience
from corerl.contracts.objective import Objective
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.objective import loss_weights
from corerl.registry import Registries, Selected
from corerl_supervised.config import RewardModelConfig
from corerl_supervised.data.pairs import Pair, Scored, ScoreEncoder, load_pairs, load_scored
from corerl_supervised.dpo import pair_batch
from corerl_supervised.objectives import PointwiseObjective, PreferenceObjective
from corerl_supervised.tasks import Rows, batch_of


class RewardModelTask:
    """See :class:`corerl_supervised.tasks.Task`."""

    head: Literal["lm", "score"] = "score"
    reference: str | None = None

    def __init__(self, config: RewardModelConfig, registries: Registries) -> None:
        self._config, self._data = config, config.data
        self._padding: int | None = None
        loss = registries.preference_losses.select(config.loss, "loss")
        self.parts: Mapping[str, Selected[Any]] = {"loss": loss} if config.targets == "preferences" else {}

    def load(self, files: Sequence[str], tokenizer: ChatTokenizer) -> Rows:
        self._padding = getattr(tokenizer.tokenizer, "pad_token_id", None)
        encoder = ScoreEncoder(tokenizer, self._data.apply_chat_template_kwargs)
        read = load_pairs if self._config.targets == "preferences" else load_scored
        return Rows(*read(files, encoder, self._data.max_length))

    def batch(self, rows: Sequence[Pair | Scored]) -> Experience:
        if self._config.targets == "preferences":
            return pair_batch([row for row in rows if isinstance(row, Pair)])
        scored = [row for row in rows if isinstance(row, Scored)]
        batch = batch_of([row.example for row in scored])
        batch.rewards = torch.tensor([[row.score] for row in scored])
        batch.loss_weights = loss_weights(batch.response_mask, "token-mean")
        return batch

    def objective(self) -> Objective:
        config = self._config
        if config.targets == "preferences":
            return PreferenceObjective(self.parts["loss"].load(), output="values", center_coef=config.center_coef)
        return PointwiseObjective(config.pointwise_loss)

    def model_config(self, values: dict[str, Any]) -> dict[str, Any]:
        """Of the class for sequence classification, with one label and the padding that it looks for."""
        named = [re.sub(r"For\w+$", "ForSequenceClassification", name) for name in values["architectures"]]
        labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
        return {**values, "architectures": named, **labels, "pad_token_id": self._padding}
