"""The log-probs of CoreRL beside those of a model's own forward, in evaluation mode, of each row alone.

A family of transformers may have a head that no part of CoreRL foresees, read later tokens, or compute with random
numbers: dropout under any name, layers that are left out, jitter. No list of names can know all of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from corerl.contracts.experience import Experience, collate
from corerl.errors import CoreRLError
from corerl_torch.families.randomness import watched

LENGTHS = ((6, 9), (6, 13), (5, 7), (6, 9))
"""tokens of prompt and response of each row; rows 0, 1 and 3 have one prompt"""

Off = Callable[[Tensor, Tensor], str]
"""By how much outputs differ, as text; '' if they are equal up to rounding."""


class Outputs(Protocol):
    """Outputs of the response tokens of rows, (N,) or (N, ...), in row-major order."""

    def __call__(self, rows: Experience, *, own: bool) -> Tensor:
        """
        Args:
            own: by the model's own forward; otherwise its output layer gets chosen hidden states.
        """
        ...


class Compared(NamedTuple):
    """Why a part is not used; '' if it gives the outputs of the model's own forward.

    Attributes:
        rows: rows beside each other.
        head: the output layer on chosen hidden states.
        training: training mode.
    """

    rows: str = ""
    head: str = ""
    training: str = ""


def compare(outputs: Outputs, train: Callable[[bool], object], off: Off, batch: Experience, device: str) -> Compared:
    """Compare padded rows, the output layer alone and training mode with the model's own forward of each row.

    Args:
        train: sets training or evaluation mode.
        device: of the model.
    """
    train(False)
    with watched(device) as has_drawn:
        try:
            true = torch.cat([outputs(batch.select(torch.tensor([row])), own=True) for row in range(len(batch))])
            beside = outputs(batch, own=True)
        except (CoreRLError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            return Compared(rows=f"its own forward fails for a text ({line(error)})")
        if has_drawn():
            return Compared(rows="it computes with random numbers in evaluation mode, too")
    if why := off(beside, true):
        return Compared(rows=f"outputs of a row depend on later tokens or on the rows beside it ({why})")
    head = _differing(lambda: outputs(batch, own=False), off, true)
    train(True)
    with watched(device) as has_drawn:
        training = _differing(lambda: outputs(batch, own=bool(head)), off, true)
        if has_drawn():
            training = "training mode draws random numbers, as for dropout"
    return Compared("", head, training)


def _differing(outputs: Callable[[], Tensor], off: Off, true: Tensor) -> str:
    try:
        return off(outputs(), true)
    except Exception as error:  # the model's code may raise anything
        return line(error)


def line(error: BaseException) -> str:
    """The error as one line."""
    return " ".join([f"{type(error).__name__}:", *(str(error).splitlines()[:1])]).removesuffix(":")


def rows(tokens: int, without: frozenset[int] = frozenset()) -> Experience:
    """A batch of few rows.

    Args:
        tokens: the ids are below.
        without: ids with a meaning of their own, such as padding or an image.
    """
    known = torch.tensor([each for each in range(tokens) if each not in without] or [0])
    random = torch.Generator().manual_seed(0)

    def drawn(count: int) -> list[int]:
        found: list[int] = known[torch.randint(len(known), (count,), generator=random)].tolist()
        return found

    common = drawn(6)
    prompts = [common if length == 6 else drawn(length) for length, _ in LENGTHS]
    responses = [drawn(length) for _, length in LENGTHS]
    responses[3][:4] = responses[0][:4]
    return collate(prompts, responses, [0, 0, 1, 0])


def special_tokens(config: Any) -> frozenset[int]:
    """Token ids that a config names: of the end, padding, images."""
    values = [*vars(config).items(), *vars(config.get_text_config()).items()]
    named = [value for key, value in values if key.endswith(("token_id", "token_ids", "token_index"))]
    flat = [each for value in named for each in (value if isinstance(value, list) else [value])]
    return frozenset(each for each in flat if isinstance(each, int))
