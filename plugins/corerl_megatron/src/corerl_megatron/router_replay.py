"""Router replay: megatron-core's routers get the experts of the column ``experts`` instead of their own choice.

megatron-core asks a router's ``router_replay`` for the top experts of each token, and computes their weights from the
router's logits. Its own class for this has one list of replays for all models of a process, and must be told whether a
layer runs forward or again in the backward pass. Here a layer's attention, which runs before its router, names the
micro-batch. So a recomputed layer gets the experts of its own micro-batch in every schedule of a pipeline.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.training_strategies import StrategySpec
from corerl.errors import ConfigError, ModelError
from corerl_megatron.parallel import Layout
from corerl_torch.routers import COLUMN, Choices, check_choices

TopK = Callable[..., tuple[Tensor, Tensor]]


class StageReplay:
    """The routers of a piece of a policy.

    Attributes:
        current: the experts of the micro-batch whose layers run now; None: the routers choose.
        dense: number of leading layers without experts.
    """

    def __init__(self, piece: Any, ranks: Layout) -> None:
        self.current: Choices | None = None
        self.config, self.ranks = piece.config, ranks
        kinds = piece.config.moe_layer_freq  # 1 for each layer with experts
        self.dense = kinds.count(0) if isinstance(kinds, list) else 0
        for layer in piece.decoder.layers:
            router = getattr(layer.mlp, "router", None)
            if router is not None:
                router.router_replay = LayerReplay(self, layer.layer_number - 1 - self.dense)

    @classmethod
    def of(cls, piece: Any, spec: StrategySpec, ranks: Layout) -> "StageReplay | None":
        """None for a critic or a reference: the policy alone replays."""
        return cls(piece, ranks) if spec.optim is not None and spec.head == "lm" else None

    def choices(self, batch: Experience, tokens: Tensor) -> Choices | None:
        """The experts of this rank's tokens; None without a column.

        Args:
            tokens: (n,) as of :class:`corerl_torch.layout.Layout`, those of the tensor-parallel ranks together.

        Raises:
            ConfigError: routers would run again in the backward pass without their attention.
            ModelError: the model has no experts.
            RunError: another model recorded the column.
        """
        column = batch.columns.get(COLUMN)
        if column is None or not len(column.values):
            return None
        config = self.config
        if not config.num_moe_experts:
            raise ModelError("model.path: the model has no experts, so no choice of them can be recorded or replayed")
        if "moe" in (config.recompute_modules or ()) and config.recompute_granularity == "selective":
            raise ConfigError(
                "actor.strategy.recompute_modules",
                f"moe cannot be recomputed with '{COLUMN}' in rollout.record: remove it",
            )
        if config.sequence_parallel:
            tokens = tokens.chunk(self.ranks.tensor.size)[self.ranks.tensor.rank]
        found = Choices.of(column, tokens, batch.input_ids.shape[1])
        check_choices(found, config.num_layers - self.dense, config.moe_router_topk, config.num_moe_experts)
        return found

    def beginning(self, choices: Choices | None) -> Callable[[], None]:
        """For a layer's attention: the layers of this micro-batch run from now on."""

        def begin() -> None:
            self.current = choices

        return begin


class LayerReplay:
    """``router_replay`` of one of megatron-core's routers."""

    def __init__(self, stage: StageReplay, layer: int) -> None:
        self.stage, self.layer = stage, layer

    def get_replay_topk(
        self, scores: Tensor, topk: int, num_groups: int | None, group_topk: int | None, default_compute_topk: TopK
    ) -> tuple[Tensor, Tensor]:
        """(tokens, topk) scores and experts, from (tokens, experts) scores."""
        top, own = default_compute_topk(scores, topk, num_groups, group_topk)
        if self.stage.current is None:
            return top, own
        experts, known = self.stage.current
        indices = torch.where(known[:, None], experts[:, self.layer].long(), own)
        return scores.gather(1, indices), indices
