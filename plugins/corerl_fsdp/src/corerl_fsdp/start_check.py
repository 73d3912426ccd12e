"""The comparison with a model's own forward at the start, by the model itself if no small one can be computed."""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.token_outputs import TokenOutputs, Wanted
from corerl.contracts.training_strategies import StrategySpec
from corerl.models import compute_dtype
from corerl_fsdp.token_model import TokenModel
from corerl_torch.families.comparison import compare, rows, special_tokens
from corerl_torch.families.modes import Modes
from corerl_torch.families.probe import ALIKE

TOKENS = 1000
"""ids of the compared rows are below, among them few of a meaning of their own"""

HALF = 0.05
"""nats, the largest median difference of outputs in half precision, whose single outputs differ more by rounding"""

Run = Callable[[Experience, Collection[Wanted]], TokenOutputs]


def settle(
    model: TokenModel, run: Run, spec: StrategySpec, gather: Callable[[float], Sequence[float]] = lambda own: [own]
) -> None:
    """Compare the outputs of a few short rows, unless a small model was compared; a collective.

    Args:
        run: of a token model, which ranks compute together.
        gather: returns the numbers of all ranks, which so decide alike.

    Raises:
        ModelError: rows of the model cannot be computed beside each other.
    """
    if model.compared is not None:
        return
    is_half = compute_dtype(spec.model, spec.device) is not torch.float32

    def off(given: Tensor, true: Tensor) -> str:
        each = (given - true).abs()
        by = max(gather(float(each.median() if is_half else each.max())))
        return "" if by <= (HALF if is_half else ALIKE) else f"off by {'a median of' if is_half else 'up to'} {by:.1g}"

    @torch.no_grad()
    def outputs(rows: Experience, *, own: bool) -> Tensor:
        model.modes = Modes(own_forward=own)
        if spec.head == "lm":
            given = run(rows, {"log_probs"}).log_probs
        else:
            given = run(rows, {"values"}).values
        assert given is not None
        return given[rows.response_mask].float()

    config = model.model.config
    batch = rows(min(TOKENS, config.get_text_config().vocab_size), special_tokens(config))
    model.settle(compare(outputs, model.train, off, batch, spec.device))
    model.train(spec.optim is not None)
