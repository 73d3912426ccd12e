"""megatron-core's GPTModel whose outputs are numbers for each response token.

The library's embedding, layers and output layer are called one after the other. Positions are passed to the layers'
attention together with the rows, so the model has no position embedding; the rotation is that of transformers, with
the scaling of the Hugging Face config.
"""

import itertools
from collections.abc import Collection
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.parallel_state import is_pipeline_first_stage, is_pipeline_last_stage
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor, nn

from corerl.contracts.experience import Experience
from corerl.contracts.token_outputs import TokenOutputs, Wanted
from corerl.contracts.training_strategies import StrategySpec
from corerl.errors import ConfigError
from corerl.models import compute_dtype
from corerl_megatron.arithmetic import ModelFacts, padded_vocabulary
from corerl_megatron.attention import PackedRows, layers
from corerl_megatron.families import FAMILIES
from corerl_megatron.latent import LatentAttention, LatentShape
from corerl_megatron.options import MegatronOptions
from corerl_megatron.parallel import Layout
from corerl_megatron.router_replay import StageReplay
from corerl_torch import layout, lora, outputs
from corerl_torch.kept_tokens import kept_mask
from corerl_torch.sequence_parallel import SequenceGroup
from corerl_torch.token_statistics import (
    in_chunks,
    log_distribution,
    of_distribution,
    token_statistics,
)
from corerl_torch.vocabulary_parallel import Part, vocabulary_parallel_statistics


class Stage(GPTModel):  # type: ignore[misc]
    """A pipeline rank's piece of the model.

    Args:
        rotary: a transformers module: (1, N) positions to the cosines and sines of their rotation.
        vocabulary: number of tokens, without padding.
    """

    def __init__(
        self,
        config: TransformerConfig,
        spec: StrategySpec,
        options: MegatronOptions,
        ranks: Layout,
        facts: ModelFacts,
        *,
        rotary: nn.Module,
        vocabulary: int,
        tied: bool,
        vp_stage: int | None,
    ) -> None:
        count = get_num_layers_to_build(config, vp_stage=vp_stage, pp_rank=ranks.pipeline.rank)
        first = get_transformer_layer_offset(config, vp_stage=vp_stage, pp_rank=ranks.pipeline.rank)
        experts = [facts.has_experts(layer) for layer in range(first, first + count)]
        super().__init__(
            config,
            layers(
                config,
                experts,
                latent=_latent(facts),
                windows=FAMILIES[facts.model_type].windows(facts.config),
                plain=lora.enabled(spec),
            ),
            vocab_size=padded_vocabulary(vocabulary, ranks.tensor.size),
            max_sequence_length=1,  # used only by learned position embeddings
            pre_process=is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
            post_process=is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
            share_embeddings_and_output_weights=tied or spec.head != "lm",
            position_embedding_type="none",
            vp_stage=vp_stage,
        )
        self.head, self.temperature, self.chunk_size = spec.head, spec.temperature, options.logits_chunk_size
        self.ranks, self.rotary, self.angles_once = ranks, rotary, FAMILIES[facts.model_type].stacked
        self.replay = StageReplay.of(self, spec, ranks)
        for layer in self.decoder.layers:
            if hasattr(layer.mlp, "router"):
                layer.mlp.router.enable_expert_bias = False  # the bias stays; no tokens are counted to move it
        if ranks.tensor.size > 1:
            _sum_over_owners(self)
        if config.add_bias_linear:
            _copy_outputs_of_experts(self)
        if self.post_process:
            own = padded_vocabulary(vocabulary, ranks.tensor.size) // ranks.tensor.size
            starts = [min(rank * own, vocabulary) for rank in range(ranks.tensor.size + 1)]
            self.counts = [end - start for start, end in itertools.pairwise(starts)]
            rank, group = ranks.tensor.rank, ranks.tensor.group if ranks.tensor.size > 1 else None
            self.part = Part(starts[rank], self.counts[rank], group)
            self.output_layer.sequence_parallel = False  # its inputs are gathered states
            if spec.head != "lm":
                device = None if config.use_cpu_initialization else torch.cuda.current_device()
                self.score = nn.Linear(
                    config.hidden_size, 1, spec.head == "value", dtype=config.params_dtype, device=device
                )

    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> Tensor | TokenOutputs:
        """On the last stage the wanted outputs, as from a strategy's forward; otherwise the next stage's input."""
        whole = _multiple(layout.packed(batch), self.ranks, self.config.sequence_parallel)
        sharing = self.ranks.tokens
        share = sharing.slice(whole) if sharing else None
        inputs, positions, real, tokens = share.layout if share else whole
        hidden = self.embedding(input_ids=inputs["input_ids"], position_ids=None) if self.pre_process else None
        if hidden is not None and torch.is_grad_enabled():
            hidden.requires_grad_()  # of a frozen embedding: recomputed layers need an input that asks for gradients
        rows = self._rows(inputs, sharing)
        if self.replay:
            rows.begin = self.replay.beginning(self.replay.choices(batch, tokens))
        hidden = self.decoder(hidden, None, packed_seq_params=rows)
        if not self.post_process:
            passed_on: Tensor = hidden
            return passed_on
        if self.config.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        own = share.own if share else slice(None)
        places = real.nonzero()
        values = self._values(hidden[:, 0][positions], batch, places[own], wanted)
        if sharing and share:
            values = {name: sharing.gather(value, share.counts) for name, value in values.items()}
        return outputs.token_outputs(values, places, real.shape)

    def _rows(self, inputs: dict[str, Any], sharing: SequenceGroup | None) -> PackedRows:
        like = torch.empty(0, dtype=self.config.params_dtype, device=inputs["input_ids"].device)
        cosine, sine = (each.transpose(0, 1) for each in self.rotary(like, inputs["position_ids"]))
        if self.angles_once:
            cosine, sine = (torch.cat((each, each), dim=-1) for each in (cosine, sine))
        return PackedRows(
            qkv_format="thd",
            bounds=inputs["cu_seq_lens_q"],
            longest=inputs["max_length_q"],
            cosine=cosine,
            sine=sine,
            sharing=sharing,
        )

    def _values(
        self, hidden: Tensor, batch: Experience, places: Tensor, wanted: Collection[Wanted]
    ) -> dict[str, Tensor]:
        """The wanted outputs of the (N, K) hidden states at (N, 2) ``places``, rows and steps; (N, ...) each."""
        if self.head != "lm":
            return {"values": self.score(hidden.to(self.score.weight.dtype)).squeeze(-1).float()}
        given = {"hidden_states": hidden} if "hidden_states" in wanted else {}
        names = {each for each in wanted if isinstance(each, str)} - {"hidden_states"}
        targets = layout.response_tokens(batch, places)
        if "vocabulary_log_probs" in names:
            logits = self._whole_logits(hidden)
            kept = kept_mask(batch, places, logits.shape[1])
            distribution = log_distribution(logits, self.temperature, kept)
            given |= of_distribution(distribution, targets, names, truncated=kept is not None)
            names = set()

        def statistics(hidden: Tensor, targets: Tensor, places: Tensor) -> dict[str, Tensor]:
            logits = self._logits(hidden)
            kept = kept_mask(batch, places, self.part.size, self.part.start)
            named = {"entropy": "entropy" in wanted, "sum_pi_squared": "sum_pi_squared" in wanted}
            if self.part.group is None:
                values = token_statistics(logits, targets, self.temperature, **named, kept=kept)
            else:
                values = vocabulary_parallel_statistics(
                    logits, targets, self.temperature, self.part, **named, kept=kept
                )
            return {name: value for name, value in values._asdict().items() if name in names}

        def of_logits(hidden: Tensor, targets: Tensor, places: Tensor) -> dict[str, Tensor]:
            further = outputs.results(wanted, self._whole_logits(hidden), batch, places, self._whole_logits)
            return further | (statistics(hidden, targets, places) if names else {})

        if outputs.functions(wanted):
            size = outputs.chunk_size(self.chunk_size, wanted)
            return given | in_chunks(of_logits, (hidden, targets, places), size)
        return given | (in_chunks(statistics, (hidden, targets, places), self.chunk_size) if names else {})

    def _whole_logits(self, hidden: Tensor) -> Tensor:
        """(N, V) of the whole vocabulary."""
        logits = self._logits(hidden)
        if self.part.group is not None:
            tensor = SequenceGroup(self.ranks.tensor.size, self.ranks.tensor.rank, self.ranks.tensor.group)
            logits = tensor.gather(logits.t().contiguous(), self.counts).t()
        return logits

    def _logits(self, hidden: Tensor) -> Tensor:
        """(N, own part of the vocabulary), without padding."""
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        logits: Tensor = self.output_layer(hidden, weight=weight)[0]
        return logits[:, : self.part.size]


def build(spec: StrategySpec, options: MegatronOptions, ranks: Layout, facts: ModelFacts, meta: Any) -> list[Stage]:
    """This rank's pieces of the model, with undefined weights.

    Args:
        meta: the transformers model, without storage.
    """
    config = transformer_config(spec, options, facts, meta.config)
    rotary = type(meta.base_model.rotary_emb)(config=meta.config).to(spec.device)
    count = options.virtual_pipeline_model_parallel_size
    pieces = []
    for piece in range(count or 1):
        stage = Stage(
            config,
            spec,
            options,
            ranks,
            facts,
            rotary=rotary,
            vocabulary=meta.config.vocab_size,
            tied=bool(meta.config.tie_word_embeddings),
            vp_stage=piece if count else None,
        )
        pieces.append(stage.train(spec.optim is not None).to(spec.device))
    return pieces


def transformer_config(
    spec: StrategySpec, options: MegatronOptions, facts: ModelFacts, config: Any
) -> TransformerConfig:
    """megatron-core's configuration for a transformers config, without features that need further packages."""
    cuda, dtype = spec.device == "cuda", compute_dtype(spec.model, spec.device)
    family = FAMILIES[facts.model_type]
    settings: dict[str, Any] = {
        "num_layers": facts.layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": facts.heads,
        "num_query_groups": facts.key_value_heads,
        "kv_channels": getattr(config, "head_dim", None) or config.hidden_size // facts.heads,
        "ffn_hidden_size": facts.intermediate,
        "layernorm_epsilon": config.rms_norm_eps,
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "activation_func": nn.functional.silu,
        "add_bias_linear": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "tensor_model_parallel_size": options.tensor_model_parallel_size,
        "pipeline_model_parallel_size": options.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": options.virtual_pipeline_model_parallel_size,
        "context_parallel_size": options.context_parallel_size,
        "expert_model_parallel_size": options.expert_model_parallel_size,
        "expert_tensor_parallel_size": 1,
        "sequence_parallel": options.sequence_parallel,
        "moe_token_dispatcher_type": "alltoall" if cuda else "allgather",  # the latter needs no CUDA streams
        "variable_seq_lengths": cuda and options.pipeline_model_parallel_size > 1,
        # two ranks that are each other's next and previous stage must not exchange both directions in one batch
        "overlap_p2p_comm": options.virtual_pipeline_model_parallel_size is not None,
        "batch_p2p_comm": options.virtual_pipeline_model_parallel_size is None,
        "calculate_per_token_loss": True,  # gradients are summed over ranks: the loss weights belong to all rows
        "use_cpu_initialization": not cuda,
        "init_method": _leave,
        "output_layer_init_method": _leave,
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "persist_layer_norm": False,
        "bias_dropout_fusion": False,
        "bias_activation_fusion": cuda and dtype == torch.bfloat16,
        **family.settings,
        **(family.of_config(facts.config) or {}),
    }
    settings |= {**_recompute(spec, options), **_experts(facts, config), **options.override_transformer_config}
    try:
        return TransformerConfig(**settings)
    except (AssertionError, ValueError) as error:
        raise ConfigError("actor.strategy", f"megatron-core refuses this: {str(error).splitlines()[0]}") from error


def _leave(weight: Tensor) -> Tensor:
    """Keep a weight, which is set later; without an initialisation function divided weights are not marked."""
    return weight


def _recompute(spec: StrategySpec, options: MegatronOptions) -> dict[str, Any]:
    """Recomputation keeps random states on CUDA only, so there is none on the CPU."""
    granularity = options.recompute_granularity or ("full" if spec.model.enable_gradient_checkpointing else None)
    if granularity is None or spec.device == "cpu" or spec.optim is None:
        return {}
    if granularity == "selective":
        return {"recompute_granularity": granularity, "recompute_modules": options.recompute_modules or ["core_attn"]}
    return {
        "recompute_granularity": granularity,
        "recompute_method": options.recompute_method,
        "recompute_num_layers": options.recompute_num_layers,
    }


def _sum_over_owners(piece: Stage) -> None:
    """Have gradients of an expert summed over the ranks with that expert.

    megatron-core sums those of its output bias over tensor parallel ranks, which may have other experts; without expert
    parallel it sums none of an expert's over ranks that share a sequence.
    """
    for layer in piece.decoder.layers:
        for parameter in layer.mlp.experts.parameters() if hasattr(layer.mlp, "experts") else ():
            parameter.allreduce = parameter.sequence_parallel = False


def _copy_outputs_of_experts(piece: Stage) -> None:
    """megatron-core adds an expert's bias to its output in place, which autograd refuses for a sum over one rank."""

    def copied(layer: Any, given: Any, result: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return result[0].clone(), result[1]

    for layer in piece.decoder.layers:
        for expert in layer.mlp.experts.local_experts:
            if not expert.linear_fc2.explicit_expert_comm:
                expert.linear_fc2.register_forward_hook(copied)


def _latent(facts: ModelFacts) -> ModuleSpec | None:
    if not FAMILIES[facts.model_type].latent:
        return None
    return ModuleSpec(module=LatentAttention, params={"shape": LatentShape.of(facts.config)})


def _experts(facts: ModelFacts, config: Any) -> dict[str, Any]:
    mixture = facts.mixture
    if mixture is None:
        return {}
    kinds = [int(facts.has_experts(layer)) for layer in range(facts.layers)]
    return {
        "num_moe_experts": mixture.number,
        "moe_ffn_hidden_size": mixture.width,
        "moe_shared_expert_intermediate_size": mixture.shared or None,
        "moe_router_topk": config.num_experts_per_tok,
        "moe_router_load_balancing_type": "none",
        "moe_router_dtype": "fp32",
        **({"moe_layer_freq": kinds} if mixture.dense else {}),
        **mixture.settings,
    }


def _multiple(whole: layout.Layout, ranks: Layout, sequence_parallel: bool) -> layout.Layout:
    """Pad the tokens so that ranks get equal parts: the filler tokens form an additional last row."""
    size = ranks.context.size * (ranks.tensor.size if sequence_parallel else 1)
    inputs = dict(whole.inputs)
    missing = -inputs["input_ids"].shape[1] % size
    if not missing:
        return whole
    for name in ("input_ids", "position_ids"):
        inputs[name] = nn.functional.pad(inputs[name], (0, missing))
    end = inputs["input_ids"].shape[1]
    inputs["cu_seq_lens_q"] = nn.functional.pad(inputs["cu_seq_lens_q"], (0, 1), value=end)
    inputs["max_length_q"] = max(inputs["max_length_q"], missing)
    tokens = nn.functional.pad(whole.tokens, (0, missing), value=-1)
    return layout.Layout(inputs, whole.positions, whole.real, tokens)
