"""A transformers model whose outputs are numbers for each response token."""

import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Self

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.token_columns import moved
from corerl.contracts.token_outputs import TokenOutputs, Wanted
from corerl.contracts.training_strategies import StrategySpec
from corerl.errors import ConfigError, ModelError
from corerl.models import compute_dtype
from corerl_fsdp.tensor_parallel import TensorGroup
from corerl_torch import bitwise as invariant
from corerl_torch import fp8 as products
from corerl_torch import layout, lora, outputs, packed_attention, rotary, tower, tries
from corerl_torch.activation_offload import offloaded
from corerl_torch.average import replaced
from corerl_torch.context_parallel import RowGroup
from corerl_torch.experts.balance import LoadBalance
from corerl_torch.experts.grouped import expert_modules
from corerl_torch.families.comparison import Compared
from corerl_torch.families.modes import Modes
from corerl_torch.families.packing import Packing, verdict_on
from corerl_torch.families.vision import dropout
from corerl_torch.kept_tokens import kept_mask
from corerl_torch.media import ImageInputs, images_of_rows, reads_images, row_images, sees_later_tokens
from corerl_torch.media_store import COLUMN as IMAGES
from corerl_torch.output_layer import body_of, logits_of
from corerl_torch.routers import Replay
from corerl_torch.token_statistics import (
    in_chunks,
    log_distribution,
    of_distribution,
    token_statistics,
)
from corerl_torch.vocabulary_parallel import Part, vocabulary_parallel_statistics
from corerl_torch.weights import saved_buffers


class TokenModel(torch.nn.Module):
    """The body runs on every token, the output layer on response positions only.

    Operations of the model on its hidden states before the output layer, or on the logits after it (scaling,
    soft-capping), still apply: the model's own forward runs, with the body replaced by its result.

    Args:
        model: a transformers causal language model, or a token classification model with one label (``spec.head``).
        use_remove_padding: rows are packed end to end, unless a probe of the family finds that they would disturb each
            other; :attr:`packs` says which.
        share_prefixes: common prefixes of packed rows are computed once; None: if possible.
        logits_chunk_size: positions whose logits exist at a time, in the forward and in the backward pass, which
            computes them again; None: all.
        compiled: decoder layers, and the statistics of the logits, with ``torch.compile``.
        sharing: the ranks that share the rows; this rank computes a part of the packed tokens.
        tensor: the ranks that divide the matrices; the output layer gives logits of this rank's part of the vocabulary.
        bitwise: the operations of :mod:`corerl_torch.bitwise`.
        fp8: the products of :mod:`corerl_torch.fp8`.
        sharded: several ranks hold shares of the weights, and compute each module together.

    Raises:
        ConfigError: the model or its attention cannot keep packed rows apart, or cannot share prefixes.
    """

    def __init__(
        self,
        model: Any,
        spec: StrategySpec,
        *,
        use_remove_padding: bool,
        share_prefixes: bool | None = None,
        logits_chunk_size: int | None,
        compiled: bool = False,
        sharing: RowGroup | None = None,
        tensor: TensorGroup | None = None,
        bitwise: bool = False,
        fp8: bool = False,
        sharded: bool = False,
        offloads: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.head, self.device = spec.head, spec.device
        self.replay = Replay.of(model, spec)
        self.images = ImageInputs(model, every_pass=sharded) if reads_images(model) else None
        self.temperature = spec.temperature
        self.trains, trust = spec.optim is not None, spec.model.trust_remote_code
        self.compared = verdict_on(model.config, spec.device, spec.head, trust_remote_code=trust).compared
        self.modes = Modes()
        self.settle(self.compared or Compared())
        attention = spec.model.attn_implementation
        packing = Packing(packs=use_remove_padding)
        if use_remove_padding and not bitwise:
            packing = Packing.of(
                model, spec.model, spec.device, spec.head, sharing=sharing, share_prefixes=share_prefixes
            )
        self.packs = use_remove_padding = packing.packs
        self.shares_prefixes = tries.shares(
            False if bitwise and share_prefixes is None else share_prefixes,
            model,
            attention,
            packs=use_remove_padding,
            ranks=sharing.heads.size if sharing and sharing.heads else 1,
            probed=packing.unshared,
        )
        if use_remove_padding and self.images and sees_later_tokens(model.config):  # bitwise
            raise ConfigError(
                "actor.strategy.use_remove_padding",
                f"must be false for {model.config.model_type}: image tokens see later ones, which packed rows do not",
            )
        self.layout = layout.packed if use_remove_padding else layout.padded
        if self.shares_prefixes:
            self.layout = tries.shared_prefixes
        self.logits_chunk_size = logits_chunk_size
        self.compiled, self.sharing, self.tensor, self.offloads = compiled, sharing, tensor, offloads
        head = model.get_output_embeddings() if tensor else None
        self.vocabulary = 0 if head is None else head.out_features
        self.part = tensor.part(self.vocabulary) if tensor else Part(0, 0, None)
        self.averaged: Mapping[str, Tensor] | None = None  # weights outside the body, set by the strategy
        self.exact_logits = bitwise and spec.device == "cuda"
        self.balance: LoadBalance | None = None  # counts the tokens of a pass, set by the strategy
        if fp8:
            products.check(spec.model, spec.device)
            products.use(model)
        if compiled:
            if spec.device == "cuda" and not bitwise and tensor is None:
                rotary.use(decoder_layers(model))
            for layer in decoder_layers(model):
                for part in _compiled_parts(layer):
                    part.forward = torch.compile(part.forward, dynamic=True)
        if bitwise:
            invariant.check(
                spec.model,
                spec.device,
                compiled=compiled,
                sharing=sharing.key if sharing else "",
                shares_prefixes=self.shares_prefixes,
                packed=use_remove_padding,
            )
            invariant.use(model, spec.device)
        elif use_remove_padding:
            by_kernel = spec.device == "cuda" and compute_dtype(spec.model, spec.device) != torch.float32
            packed_attention.use(
                model,
                attention,
                sharing,
                outside_graphs=compiled and (sharing is not None or not by_kernel),
            )
        if self.images and not bitwise and attention == "sdpa":
            tower.use_kernel(self.images.body, spec.device, compute_dtype(spec.model, spec.device))

    def settle(self, compared: Compared) -> None:
        """Compute as the comparison with the model's own forward allows.

        Raises:
            ModelError: rows of the model cannot be computed beside each other.
        """
        if key := dropout(self.model.config):
            compared = compared._replace(training=f"training mode has {key}")
        self.modes = Modes.of(type(self.model).__name__, compared, trains=self.trains)

    def train(self, mode: bool = True) -> Self:
        """Set training mode, or evaluation mode for a model whose training mode is another function."""
        return super().train(mode and not self.modes.evaluation)

    def forward(
        self, batch: Experience, wanted: Collection[Wanted], on_device: Experience | None = None
    ) -> TokenOutputs:
        """The wanted outputs, float32, 0 outside the responses; differentiable if gradients are enabled.

        Args:
            batch: on the CPU: the places of its tokens are found there, and neither pass waits for the device.
            on_device: the batch on the model's device, if it was copied before.
        """
        whole = self._with_positions(self.layout(batch), batch)
        share = self.sharing.slice(whole) if self.sharing else None
        inputs, positions, real, numbers = share.layout if share else whole
        images = self._reading(batch, inputs, numbers)
        here = real.nonzero()
        mine = here[share.own] if share else here
        batch = batch.to(self.device) if on_device is None else on_device
        positions, tokens, places = (moved(each, self.device) for each in (positions, numbers, here))
        own = moved(mine, self.device) if share else places
        inputs = {name: moved(each, self.device) if isinstance(each, Tensor) else each for name, each in inputs.items()}
        if self.replay:
            self.replay.begin(batch.columns, tokens, batch.input_ids.shape[1])
        counted = self.balance.watching(tokens, batch) if self.balance else contextlib.nullcontext()
        offloading = self.offloads and torch.is_grad_enabled()
        saved = offloaded(self.device) if offloading else contextlib.nullcontext()
        with counted, saved, images as further:
            whole = self.model if self.modes.own_forward else body_of(self.model)
            result = whole(**inputs, **further, use_cache=False)
        hidden = (result.logits if self.modes.own_forward else result.last_hidden_state).flatten(0, 1)[positions]
        values = self._values(hidden, batch, own, type(result), wanted)
        if self.sharing and share:
            values = {name: self.sharing.gather(value, share.slices) for name, value in values.items()}
        return outputs.token_outputs(values, places, real.shape)

    def _with_positions(self, whole: layout.Layout, batch: Experience) -> layout.Layout:
        """The layout, with the positions of a model whose positions depend on images."""
        if self.images is None or not self.images.has_own_positions:
            return whole
        rows = images_of_rows(batch.columns.get(IMAGES), len(batch))
        positions = self.images.positions(batch.input_ids, batch.lengths.tolist(), rows).flatten(1)
        inputs = whole.inputs | {"position_ids": positions[:, whole.tokens].view(3, *whole.inputs["input_ids"].shape)}
        return whole._replace(inputs=inputs)

    def _reading(
        self, batch: Experience, inputs: dict[str, Any], tokens: Tensor
    ) -> AbstractContextManager[dict[str, Any]]:
        """Further inputs of the body: the batch's images.

        Raises:
            ConfigError: ranks share the tokens of the rows.
            ModelError: the model reads text alone.
        """
        rows = images_of_rows(batch.columns.get(IMAGES), len(batch))
        if self.images is None:
            if any(rows):
                ImageInputs(self.model)
            return contextlib.nullcontext({})
        if self.sharing and any(rows):
            raise ConfigError(self.sharing.key, "must be 1 for prompts with images")
        return self.images.reading(inputs["input_ids"].shape, row_images(rows, tokens, batch.input_ids.shape[1]))

    def trie(self, batch: Experience) -> tries.Trie | None:
        """The rows as a trie if their prefixes are shared."""
        return tries.Trie.of(batch) if self.shares_prefixes else None

    def _values(
        self, hidden: Tensor, batch: Experience, places: Tensor, answer: type, wanted: Collection[Wanted]
    ) -> dict[str, Tensor]:
        """The wanted outputs of the (N, K) hidden states at (N, 2) ``places``, rows and steps; (N, ...) each.

        Args:
            hidden: logits instead, with ``own_forward``.
        """
        if self.head != "lm":
            return {"values": self._head(hidden, answer).squeeze(-1).float()}
        values = {"hidden_states": self._apart(hidden)} if "hidden_states" in wanted else {}
        named = {name for name in wanted if isinstance(name, str)} - {"hidden_states"}
        targets = layout.response_tokens(batch, places)
        if "vocabulary_log_probs" in named:
            logits = self._whole_head(hidden, answer)
            kept = kept_mask(batch, places, logits.shape[1])
            distribution = log_distribution(logits, self.temperature, kept)
            values |= of_distribution(distribution, targets, named, truncated=kept is not None)
            named = set()

        def statistics(hidden: Tensor, targets: Tensor, places: Tensor) -> dict[str, Tensor]:
            logits = self._head(hidden, answer)
            kept = kept_mask(batch, places, logits.shape[1], self.part.start)
            if not outputs.functions(wanted):
                return self._statistics(logits, targets, kept, named)
            head, averaged = (
                functools.partial(each, answer=answer) for each in (self._given_head, self._averaged_head)
            )
            whole = self._whole(logits)
            further = outputs.results(wanted, whole, batch, places, head, None if self.averaged is None else averaged)
            return further | (self._statistics(logits, targets, kept, named) if named else {})

        if named or outputs.functions(wanted):
            size = outputs.chunk_size(self.logits_chunk_size, wanted)
            values |= in_chunks(statistics, (hidden, targets, places), size)
        return values

    def _statistics(
        self, logits: Tensor, targets: Tensor, kept: Tensor | None, wanted: Collection[str]
    ) -> dict[str, Tensor]:
        further = {"entropy": "entropy" in wanted, "sum_pi_squared": "sum_pi_squared" in wanted}
        if self.tensor is not None:
            statistics = vocabulary_parallel_statistics(
                logits, targets, self.temperature, self.part, **further, kept=kept
            )
        else:
            statistics = token_statistics(
                logits, targets, self.temperature, **further, compiled=self.compiled, kept=kept
            )
        return {name: value for name, value in statistics._asdict().items() if name in wanted}

    def _given_head(self, hidden: Tensor, answer: type) -> Tensor:
        """:meth:`_whole_head` of hidden states from elsewhere."""
        return self._whole_head(self._apart(hidden), answer)

    def _whole_head(self, hidden: Tensor, answer: type) -> Tensor:
        """:meth:`_head` of the whole vocabulary."""
        return self._whole(self._head(hidden, answer))

    def _whole(self, logits: Tensor) -> Tensor:
        return logits if self.tensor is None else self.tensor.gather(logits, self.vocabulary)

    def _head(self, hidden: Tensor, answer: type) -> Tensor:
        """Logits of the hidden states (N, K), with all operations of the model after its body.

        (N, V), or those of this rank's part of the vocabulary.
        """
        logits = hidden if self.modes.own_forward else logits_of(self.model, hidden, answer)
        return logits.float() if self.exact_logits else logits  # log-softmax of another dtype sums in another order

    def _averaged_head(self, hidden: Tensor, answer: type) -> Tensor:
        """:meth:`_head` with the averaged weights."""
        assert self.averaged is not None
        with replaced(self.model, self.averaged):
            return self._head(self._apart(hidden), answer)

    def _apart(self, hidden: Tensor) -> Tensor:
        """
        Raises:
            ModelError: the model has no hidden states whose logits could be computed apart.
        """
        if self.modes.own_forward:
            name = type(self.model).__name__
            raise ModelError(f"model.path: {name} gives no hidden states: its output layer cannot be computed apart")
        return hidden


def decoder_layers(model: Any) -> list[Any]:
    """The layers of a transformers model: as named by its class, else those that can be recomputed; none is in another.

    Raises:
        ModelError: there are none.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    layers = layers or [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ModelError(
            f"{type(model).__name__} can be neither sharded, compiled nor recomputed: transformers does not name its "
            "layers"
        )
    inner = {id(part) for layer in layers for part in layer.modules() if part is not layer}
    return [layer for layer in layers if id(layer) not in inner]


def _compiled_parts(layer: Any) -> list[Any]:
    """A layer, or with experts its other children: their exchange and their number of tokens break a graph."""
    return [each for each in layer.children() if not expert_modules(each)] if expert_modules(layer) else [layer]


def stored(model: Any) -> Iterator[tuple[str, Tensor]]:
    """What a checkpoint holds, by name: the trained weights, and without adapters the buffers of the model's files."""
    yield from lora.trained(model)
    if not any(".lora_" in name for name, _ in model.named_parameters()):
        yield from saved_buffers(model)
