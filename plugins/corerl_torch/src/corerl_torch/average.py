"""An exponential moving average of a model's trained weights in float32: e = decay e + (1 - decay) w, by update.

It begins with the weights that the run starts from. Shares of sharded weights have shares of the average.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from corerl.errors import ConfigError, ModelError
from corerl_torch import lora
from corerl_torch.host_memory import moved

KEY = "actor.strategy.ema_decay"

PREFIX = "average."
"""of the names in a checkpoint"""


class Average:
    """The average of the trained weights of a model, on the device where they rest.

    Args:
        decay: share of the average that an update keeps, in [0, 1].
    """

    def __init__(self, model: Any, decay: float) -> None:
        self.model, self.decay = model, decay
        self.values: dict[str, Tensor] = {
            name: parameter.detach().float().clone() for name, parameter in lora.trained(model)
        }

    @torch.no_grad()
    def update(self) -> None:
        """Take in the present weights, after an optimizer step."""
        for mine, present in self._pairs():
            average = mine.to(present.device)
            mine.copy_(average.lerp_(present.float(), 1 - self.decay))

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Within, the model has the averaged weights, in place; gradients must be off."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def outside_body(self, whole: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Name -> averaged weight of everything that is trained outside the body, such as the output layer.

        Args:
            whole: returns the full tensor of a share; called on all ranks in the same order.
        """
        body = f"{self.model.base_model_prefix}."
        names = {parameter: name for name, parameter in lora.trained(self.model)}
        named = self.model.named_parameters(remove_duplicate=False)
        found = {name: names[each] for name, each in named if not name.startswith(body) and each in names}
        return {name: whole(self.values[own]) for name, own in found.items()}

    def to(self, device: str) -> None:
        """Move the average."""
        self.values = {name: moved(value, device) for name, value in self.values.items()}

    @torch.no_grad()
    def _swap(self) -> None:
        for mine, present in self._pairs():
            held = present.clone()
            present.copy_(mine)
            mine.copy_(held)

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(average, weight) of each, this rank's shares."""
        for name, parameter in lora.trained(self.model):
            yield _own(self.values[name]), _own(parameter.detach())


def kept(average: Average | None) -> Average:
    """
    Raises:
        ConfigError: there is none.
    """
    if average is None:
        raise ConfigError(KEY, "must be given: an average of the weights is wanted, and none is kept")
    return average


def check_average(folder: Path, stored: bool) -> None:
    """
    Raises:
        ModelError: the checkpoint in ``folder`` has no average.
    """
    if not stored:
        raise ModelError(f"{folder} has no average of the weights: it was written without {KEY}")


def _own(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@contextmanager
def replaced(model: Any, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Within, parameters of these names are other tensors, in the parameters' dtype."""
    held = []
    for name, weight in weights.items():
        owner, _, last = name.rpartition(".")
        parameters = model.get_submodule(owner)._parameters
        held.append((parameters, last, parameters[last]))
        parameters[last] = torch.nn.Parameter(weight.to(parameters[last].dtype), requires_grad=False)
    try:
        yield
    finally:
        for parameters, last, parameter in held:
            parameters[last] = parameter
