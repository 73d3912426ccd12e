"""The only update of a step: its forward pass is that of the policy before the update."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.objective import Objective, ObjectiveOutput
from corerl.contracts.token_outputs import Output, TokenOutputs, Wanted
from corerl.errors import RunError

OUTPUTS: tuple[Output, ...] = ("log_probs", "entropy")
"""that an update keeps"""


class OwnPass:
    """An objective whose old log-probs are the log-probs of its own forward pass, so every ratio is 1.

    It keeps log-probs and entropy of all rows. Micro-batches have ``row_ids``.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._kept: list[tuple[Tensor, Sequence[Tensor]]] = []

    @property
    def wanted(self) -> frozenset[Wanted]:
        return self._objective.wanted | frozenset(OUTPUTS)

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
        log_probs, entropy = outputs.log_probs, outputs.entropy
        assert log_probs is not None and entropy is not None and batch.row_ids is not None
        old = log_probs.detach()
        self._kept.append((batch.row_ids, (old, entropy.detach())))
        return self._objective(outputs, dataclasses.replace(batch, old_log_probs=old))

    def outputs(self, shape: torch.Size) -> TokenOutputs:
        """Those of all rows, on the CPU.

        Args:
            shape: (B, T) of the rows.

        Raises:
            RunError: the strategy did not call the objective with every row.
        """
        columns = [torch.zeros(shape) for _ in OUTPUTS]
        missing = set(range(shape[0]))
        for rows, parts in self._kept:
            places = rows.cpu()
            missing -= set(places.tolist())
            for column, part in zip(columns, parts, strict=True):
                column[places, : part.shape[1]] = part.float().cpu()
        if missing:
            raise RunError(
                f"the update did not call the objective with rows {sorted(missing)[:8]}: a training strategy with the "
                "fact outputs_of_update must call it with all rows of each rank's share"
            )
        return TokenOutputs(log_probs=columns[0], entropy=columns[1])
