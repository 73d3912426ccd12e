"""The mode in which a strategy computes a model, by the comparison with its own forward; one line for a special one."""

import functools
from typing import NamedTuple

from corerl.errors import ModelError
from corerl.terminal import say
from corerl_torch.families.comparison import Compared


class Modes(NamedTuple):
    """
    Attributes:
        own_forward: the model's own forward computes logits of all tokens; otherwise its output layer gets the hidden
            states of response tokens.
        evaluation: the model is trained in evaluation mode, without random numbers.
    """

    own_forward: bool = False
    evaluation: bool = False

    @classmethod
    def of(cls, name: str, compared: Compared, *, trains: bool) -> "Modes":
        """
        Args:
            name: of the model's class.
            trains: the model is trained.

        Raises:
            ModelError: rows of the model cannot be computed beside each other.
        """
        if compared.rows:
            raise ModelError(f"model.path: {refusal(name, compared)}")
        if compared.head:
            _tell(own_forward(name, compared))
        if compared.training and trains:
            _tell(evaluation(name, compared))
        return cls(bool(compared.head), bool(compared.training))


def refusal(name: str, compared: Compared) -> str:
    """The reason, if rows cannot be computed."""
    return f"{name} is no causal language model that can be trained: {compared.rows}"


def own_forward(name: str, compared: Compared) -> str:
    """The line about outputs by the model's own forward."""
    return (
        f"log-probs of {name} are those of its own forward, because its output layer alone gives others "
        f"({compared.head}): logits of all tokens of a micro-batch are computed and stored at once"
    )


def evaluation(name: str, compared: Compared) -> str:
    """The line about training in evaluation mode."""
    return f"{name} is trained in evaluation mode, at the same cost: {compared.training}"


_tell = functools.cache(say)
"""each sentence once in a process"""
