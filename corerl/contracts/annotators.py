"""Annotators: columns of tokens that a plugin adds to each mini-batch, such as a teacher's; and models of their own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from corerl.contracts.experience import Experience
    from corerl.contracts.runtimes import Role


@dataclass(frozen=True)
class ModelRole:
    """A further model of a run, beside policy, reference and critic.

    It is never updated; its workers are :class:`corerl.trainer.workers.ReferenceWorker`.

    Attributes:
        role: its name is that of no other role.
        path: folder or hub name of the model.
        key: config key of the path.
    """

    role: "Role"
    path: str
    key: str


class Annotator(Protocol):
    """Called just before each update of the policy.

    Attributes:
        part: the time counts as ``timing_s/<part>``, and not as time of the update.
    """

    part: str

    def annotate(self, mini_batch: "Experience", rows: "Tensor", rollouts: Any) -> Mapping[str, Any]:
        """Set columns of the mini-batch.

        Args:
            rows: (b,) int64, the mini-batch's rows among ``rollouts.rows()``.
            rollouts: of the step (:class:`corerl.batch.rollouts.Rollouts`).

        Returns:
            Metrics of the update, name -> :class:`corerl.contracts.losses.Mean`.
        """
        ...
