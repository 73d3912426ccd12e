"""Supervised fine-tuning: cross-entropy on the assistant's tokens, a mean over all of them in the mini-batch."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from corerl.contracts.experience import Experience
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.objective import loss_weights
from corerl.registry import Registries, Selected
from corerl_supervised.config import SftConfig
from corerl_supervised.data.conversations import ChatExample, load_chat
from corerl_supervised.tasks import Rows, batch_of
from corerl_torch.supervised import SupervisedObjective


class SftTask:
    """See :class:`corerl_supervised.tasks.Task`."""

    head: Literal["lm", "score"] = "lm"
    reference: str | None = None
    parts: Mapping[str, Selected[Any]] = {}

    def __init__(self, config: SftConfig, registries: Registries) -> None:
        self._data = config.data

    def load(self, files: Sequence[str], tokenizer: ChatTokenizer) -> Rows:
        chats = load_chat(files, tokenizer, self._data.max_length, self._data.apply_chat_template_kwargs)
        return Rows(chats.examples, chats.report)

    def batch(self, rows: Sequence[ChatExample]) -> Experience:
        batch = batch_of(rows)
        batch.loss_weights = loss_weights(batch.response_mask, "token-mean")
        return batch

    def objective(self) -> SupervisedObjective:
        return SupervisedObjective()

    def model_config(self, values: dict[str, Any]) -> dict[str, Any]:
        return values
