"""Checks a stream of weights against the model that receives it."""

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor

from corerl.errors import RunError


def complete(weights: Iterable[tuple[str, Tensor]], expected: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Pass the tensors on, and check them.

    Args:
        expected: the model's own tensors by name; tied weights are one tensor with several names; one name is enough.

    Raises:
        RunError: a tensor is unknown or of another shape, or, at the end, missing.
    """
    received = set()
    for name, tensor in weights:
        own = expected.get(name)
        if own is None:
            raise RunError(f"weight '{name}' is unknown to the rollout model: the same model.path must be trained")
        if tensor.shape != own.shape:
            given, wanted = list(tensor.shape), list(own.shape)
            raise RunError(f"weight '{name}' has shape {given}, the rollout model's has {wanted}")
        received.add(id(own))
        yield name, tensor
    missing = [name for name, own in expected.items() if id(own) not in received]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise RunError(f"weight '{missing[0]}'{more} is missing in the update: all weights must be sent")
