"""The models of a run, as the controller sees them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import TokenOutputs, Wanted
from corerl.errors import RunError
from corerl.trainer.workers import CriticWorker, ModelWorker, PolicyWorker, ReferenceWorker, TrainedWorker


@dataclass(frozen=True)
class BaseOfPolicy:
    """The reference of a policy with adapters: its model without them, on the policy's own workers."""

    actor: PolicyWorker

    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        return self.actor.forward_base(batch, wanted)


@dataclass(frozen=True)
class Models:
    """Workers by role; None if the algorithm needs no such model.

    Attributes:
        shape: of the policy.
        max_vocabulary_gb: most memory, in GiB, of the reference's log-probs of the vocabulary:
            ``ref.max_vocabulary_log_probs_gb``.
        others: role -> model of a plugin (hook ``model_roles``).
    """

    actor: PolicyWorker
    critic: CriticWorker | None
    reference: ReferenceWorker | BaseOfPolicy | None
    shape: ModelShape
    max_vocabulary_gb: float
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

    def ref_vocabulary_log_probs(self, mini_batch: Experience) -> Tensor:
        """(b, T, V), the reference's log-probs of every token of the vocabulary.

        Raises:
            RunError: they take more than ``max_vocabulary_gb``.
        """
        rows, tokens = mini_batch.response_mask.shape
        gigabytes = rows * tokens * self.shape.vocabulary * 4 / 2**30
        if gigabytes > self.max_vocabulary_gb:
            raise RunError(
                f"log-probs of {rows} × {tokens} tokens over a vocabulary of {self.shape.vocabulary} take "
                f"{gigabytes:.1f} GiB, more than ref.max_vocabulary_log_probs_gb = {self.max_vocabulary_gb:g}: use a "
                "smaller actor.ppo_mini_batch_size, or a KL type of the sampled tokens such as low_var_kl"
            )
        assert self.reference is not None
        log_probs = self.reference.forward(mini_batch.tokens(), ["vocabulary_log_probs"]).vocabulary_log_probs
        assert log_probs is not None
        return log_probs
