"""The models of a run, as the controller sees them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import TokenOutputs, Wanted
from corerl.rollout.scored import ScoredRollouts
from corerl.trainer.workers import CriticWorker, ModelWorker, PolicyWorker, ReferenceWorker, TrainedWorker


@dataclass(frozen=True)
class BaseOfPolicy:
    """The reference of a policy with adapters: its model without them, on the policy's own workers."""

    actor: PolicyWorker

    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        return self.actor.forward_base(batch, wanted)


class EarlyReference(Protocol):
    """A reference that reads the groups of a step while others generate (hook ``make_early_reference``).

    Attributes:
        seconds: of reading in the step that :meth:`forward` returned last.
    """

    seconds: float

    def finished(self, groups: Sequence[ScoredRollouts | None]) -> None:
        """Another group is complete. It returns at once.

        Args:
            groups: of the step that generates, as far as they are admitted, in the order of training; None: open.
        """
        ...

    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        """Wait for the log-probs of all groups; ``batch``: the rows of the step."""
        ...


@dataclass(frozen=True)
class Models:
    """Workers by role; None if the algorithm needs no such model.

    Attributes:
        shape: of the policy.
        others: role -> model of a plugin (hook ``model_roles``).
    """

    actor: PolicyWorker
    critic: CriticWorker | None
    reference: ReferenceWorker | BaseOfPolicy | None
    shape: ModelShape
    others: Mapping[str, ReferenceWorker] = field(default_factory=dict)

    @property
    def all(self) -> list[ModelWorker]:
        reference = None if isinstance(self.reference, BaseOfPolicy) else self.reference
        return [model for model in (self.actor, self.critic, reference, *self.others.values()) if model is not None]

    @property
    def trained(self) -> dict[str, TrainedWorker]:
        """Name in a checkpoint -> model."""
        return {"actor": self.actor} if self.critic is None else {"actor": self.actor, "critic": self.critic}

    def present_log_probs(self, mini_batch: Experience) -> Tensor:
        """(b, T), log pi of the sampled tokens under the present policy."""
        present = self.actor.forward(mini_batch.tokens(), ["log_probs"]).log_probs
        assert present is not None
        return present
