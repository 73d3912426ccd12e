"""Tasks: the rows, the batch and the objective of one command."""

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from corerl.contracts.experience import Experience, collate
from corerl.contracts.losses import Mean
from corerl.contracts.objective import Objective
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.report import LoadReport
from corerl.errors import RunError
from corerl.registry import Registries, Selected
from corerl_supervised.data.conversations import ChatExample

if TYPE_CHECKING:
    from corerl_supervised.config import SupervisedConfig


class Rows(NamedTuple):
    """The usable rows of some files, and the counts of the others."""

    rows: Sequence[Any]
    report: LoadReport


class Task(Protocol):
    """What a command trains; made as ``Task(config, registries)``, in the controller and in each worker.

    Attributes:
        head: of the trained model.
        reference: path of the reference model, or None without one.
        parts: name -> part that the config selects.
    """

    head: Literal["lm", "score"]
    reference: str | None
    parts: Mapping[str, Selected[Any]]

    def load(self, files: Sequence[str], tokenizer: ChatTokenizer) -> Rows:
        """The rows of files; each has a ``location``.

        Raises:
            RequestError: a file or a row is wrong, or no row can be used.
        """
        ...

    def batch(self, rows: Sequence[Any]) -> Experience:
        """A mini-batch with the weights of its loss."""
        ...

    def objective(self) -> Objective: ...

    def model_config(self, values: dict[str, Any]) -> dict[str, Any]:
        """The content of the trained model's ``config.json``, from that of the model it began with."""
        ...


def task_of(config: "SupervisedConfig", registries: Registries) -> Task:
    """The task of a config."""
    module, _, name = config.task.partition(":")
    task: Task = getattr(importlib.import_module(module), name)(config, registries)
    return task


def batch_of(examples: Sequence[ChatExample]) -> Experience:
    """Conversations as a batch: the tokens before the first learned token are the prompt, the others the response."""
    started = [(example, example.loss_mask.index(True)) for example in examples]
    return collate(
        [example.token_ids[:start] for example, start in started],
        [example.token_ids[start:] for example, start in started],
        list(range(len(examples))),
        masks=[example.loss_mask[start:] for example, start in started],
    )


def check_units(batch: Experience, metrics: Mapping[str, Mean], strategy: str) -> None:
    """Raise RunError if a training strategy has separated the rows of a pair: then the metrics count fewer pairs."""
    if batch.unit_ids is None or "accuracy" not in metrics:
        return
    pairs, counted = len(set(batch.unit_ids.tolist())), float(metrics["accuracy"].count)
    if counted != pairs:
        raise RunError(
            f"training strategy '{strategy}' has put the rows of a pair into different micro-batches ({counted:g} of "
            f"{pairs} pairs are whole): it must keep rows of equal unit_ids together"
        )
