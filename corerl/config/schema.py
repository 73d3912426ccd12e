"""Every key of a training config, with its default, help and range.

Leaf names are those of verl without its ``actor_rollout_ref.`` prefix. A key that selects a registered name takes the
name or a mapping ``{name: …, option: …}``; it is typed ``Any`` here and checked against the entry's own options.
"""

from dataclasses import dataclass
from typing import Any, Literal

from corerl.config.rejection import Rule, rejection_rules
from corerl.options import option

LossAggMode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@dataclass
class ModelConfig:
    """The model that is trained, and how it is held."""

    path: str = option(help="Hugging Face folder or hub name with weights, config, tokenizer and chat template")
    load_format: Literal["auto", "dummy"] = option("auto", "dummy: random weights from the config, to try a shape")
    dtype: Literal["auto", "fp32", "bf16"] = option("auto", "of compute; auto: bf16 on cuda, fp32 on cpu")
    attn_implementation: str = option("sdpa", "passed to transformers")
    enable_gradient_checkpointing: bool = option(False, "recompute activations in the backward pass, to save memory")
    tokenizer_path: str | None = option(None, "folder or hub name of the tokenizer; null: that of the model")
    chat_template: str | None = option(None, "Jinja file used in place of the tokenizer's own template")
    trust_remote_code: bool = option(False, "run Python code that comes with the model")
    lora_rank: int = option(0, "train adapters of this rank and not the model's own weights; 0: those", ge=0)
    lora_alpha: int = option(16, "with lora_rank; adapters count lora_alpha / lora_rank times", ge=1)
    target_modules: Any = option("all-linear", "with lora_rank: names of layers, or all-linear: all but the output")

    def __post_init__(self) -> None:
        names = self.target_modules
        if names != "all-linear" and not (
            isinstance(names, list) and names and all(isinstance(each, str) for each in names)
        ):
            raise ValueError(f"model.target_modules must be all-linear or a list of layers' names, not {names!r}")


@dataclass
class DataConfig:
    """Prompts: where they are, how long they may be."""

    train_files: list[str] = option(help="parquet files", factory=list)
    val_files: list[str] = option(help="parquet files", factory=list)
    train_batch_size: int = option(256, "prompts in a step", ge=1)
    gen_batch_size: int | None = option(
        None, "prompts generated at a time, with algorithm.filter_groups; null: train_batch_size", ge=1
    )
    val_batch_size: int | None = option(None, "prompts generated at a time in evaluation; null: all", ge=1)
    val_max_samples: int | None = option(None, "evaluate on the first so many rows; null: all", ge=1)
    max_prompt_length: int = option(512, "tokens", ge=1)
    max_response_length: int = option(512, "tokens", ge=1)
    filter_overlong_prompts: bool = option(True, "leave out prompts longer than max_prompt_length; they are counted")
    truncation: Literal["error", "left", "right", "middle"] = option(
        "error", "what happens to a prompt that is too long"
    )
    shuffle: bool = option(True, "a new order each epoch, from data.seed")
    seed: int | None = option(None, "of the sampler; null: trainer.seed")
    apply_chat_template_kwargs: dict[str, Any] = option(help="passed to the chat template", factory=dict)
    custom_cls: Any = option(None, "./file.py:Class that gives the rows; null: the files are parquet and hold them")


@dataclass
class KLControlConfig:
    """Weight of the KL penalty in the reward."""

    type: Any = option("fixed", "KL controller: how the coefficient changes")
    kl_coef: float = option(0.001, "coefficient, at the start", ge=0)
    target_kl: float | None = option(None, "option of the KL controller, where it has one", gt=0)
    horizon: int | None = option(None, "option of the KL controller, where it has one", ge=1)


@dataclass
class FilterGroupsConfig:
    """Dynamic sampling: groups that teach nothing are dropped, and further prompts take their place."""

    enable: bool = option(False, "drop groups and generate more")
    filter: Any = option("dynamic_sampling", "batch filter: which groups are kept")
    metric: str | None = option(None, "option of the batch filter, where it has one")
    max_num_gen_batches: int = option(10, "generated batches in a step, after which the run stops", ge=1)


@dataclass
class RolloutCorrectionConfig:
    """The rollout backend's probabilities of its tokens differ a little from the trainer's: weights and rejection."""

    rollout_is: Literal["none", "token", "sequence", "geometric"] | None = option(
        None,
        "level of the importance weights pi_old / pi_rollout of the policy loss; null: token with "
        "trainer.max_staleness, none without",
    )
    rollout_is_mode: Literal["truncate", "mask", "clip"] = option(
        "truncate", "truncate: at most the threshold; clip: also at least the lower one; mask: outside of both 0"
    )
    rollout_is_threshold: float = option(2.0, "largest weight", gt=0)
    rollout_is_threshold_lower: float | None = option(
        None, "smallest weight, of mask and clip; null: 1 / rollout_is_threshold", ge=0
    )
    rollout_is_batch_normalize: bool = option(
        False, "divide the weights by their mean: of token over tokens, of sequence and geometric over responses"
    )
    rollout_rs: Any = option(
        None,
        "by which tokens or whole responses are rejected: a rule, a list of rules, or a mapping of rules to thresholds "
        "such as {token_k1: [0.5, 2], seq_max_k3: 0.1}; null: none",
    )
    rollout_rs_threshold: float = option(
        2.0,
        "of rules without one of their own, rejected above: k2, k3, binary_kl themselves; of k1, the importance ratio "
        "exp(-k1)",
        gt=0,
    )
    rollout_rs_threshold_lower: float | None = option(
        None, "k1: the ratio rejected below; null: 1 / rollout_rs_threshold", gt=0
    )
    max_log_prob_diff: float | None = option(
        None,
        "stop when log pi_old and log pi_rollout of the same weights differ by more, mean over tokens; null: what "
        "dtype and number of layers let expect, eightfold; .inf: never",
        gt=0,
    )
    bypass_mode: bool = option(
        False,
        "take the rollout backend's log-probs as old_log_probs; rollout_is and rollout_rs then compare the engine with "
        "the policy just before each update",
    )

    def __post_init__(self) -> None:
        self.rules()

    def rules(self) -> tuple[Rule, ...]:
        """The rules of ``rollout_rs``."""
        return rejection_rules(self.rollout_rs, self.rollout_rs_threshold, self.rollout_rs_threshold_lower)

    @property
    def acts(self) -> bool:
        """Whether tokens are weighted or rejected."""
        return self.rollout_is not in (None, "none") or self.rollout_rs is not None


@dataclass
class AlgorithmConfig:
    """From scores to advantages."""

    adv_estimator: Any = option("grpo", "advantage estimator")
    gamma: float | None = option(None, "option of the advantage estimator, where it has one", ge=0, le=1)
    lam: float | None = option(None, "option of the advantage estimator, where it has one", ge=0, le=1)
    norm_adv_by_std_in_grpo: bool | None = option(None, "option of the advantage estimator, where it has one")
    use_kl_in_reward: bool = option(False, "subtract kl_coef · KL from each token's reward")
    kl_penalty: Any = option("low_var_kl", "KL type of the penalty in the reward")
    kl_ctrl: KLControlConfig = option(help="weight of the penalty in the reward", factory=KLControlConfig)
    filter_groups: FilterGroupsConfig = option(help="dynamic sampling", factory=FilterGroupsConfig)
    rollout_correction: RolloutCorrectionConfig = option(
        help="the rollout backend against the trainer", factory=RolloutCorrectionConfig
    )


@dataclass
class OptimConfig:
    """AdamW and its schedule."""

    lr: float = option(1e-6, "learning rate after warm-up", gt=0)
    weight_decay: float = option(0.01, "of AdamW, on weights with two or more dimensions", ge=0)
    betas: list[float] = option(help="of AdamW", factory=lambda: [0.9, 0.999])
    eps: float = option(1e-8, "of AdamW", gt=0)
    lr_warmup_steps: int = option(0, "optimizer steps over which the rate rises linearly from 0", ge=0)
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = option("constant", "shape after warm-up")
    min_lr_ratio: float = option(0.0, "share of lr at which linear and cosine end", ge=0, le=1)


@dataclass
class ActorConfig:
    """The policy's update."""

    strategy: Any = option("torch", "training strategy")
    device: Literal["auto", "cpu", "cuda"] = option("auto", "auto: cuda where there is one")
    optim: OptimConfig = option(help="optimizer", factory=OptimConfig)
    grad_clip: float = option(1.0, "largest gradient norm", gt=0)
    ppo_mini_batch_size: int = option(
        64, "prompts in one optimizer step; their rollout.n responses count with them", ge=1
    )
    ppo_epochs: int = option(1, "passes over the step's batch", ge=1)
    use_dynamic_bsz: bool = option(True, "cut micro-batches by tokens; false: by sequences")
    ppo_max_token_len_per_gpu: int = option(16384, "tokens in a micro-batch, with use_dynamic_bsz", ge=1)
    ppo_micro_batch_size_per_gpu: int = option(8, "sequences in a micro-batch, without use_dynamic_bsz", ge=1)
    policy_loss: Any = option("vanilla", "policy loss")
    clip_ratio_low: float | None = option(None, "option of the policy loss, where it has one", gt=0)
    clip_ratio_high: float | None = option(None, "option of the policy loss, where it has one", gt=0)
    clip_ratio_c: float | None = option(None, "option of the policy loss, where it has one", gt=1)
    loss_agg_mode: LossAggMode = option("token-mean", "from per-token terms to the loss")
    loss_scale_factor: int | None = option(None, "length in seq-mean-token-sum-norm; null: max_response_length", ge=1)
    use_kl_loss: bool = option(False, "add kl_loss_coef · KL(policy || reference) to the loss")
    kl_loss_coef: float = option(0.001, "weight of the KL loss", ge=0)
    kl_loss_type: Any = option("low_var_kl", "KL type of the loss")
    entropy_coeff: float = option(0.0, "weight of the entropy bonus", ge=0)


@dataclass
class RefConfig:
    """The reference model: only run, never updated."""

    path: str | None = option(None, "another model than model.path")
    log_prob_max_token_len_per_gpu: int | None = option(None, "tokens in a micro-batch; null: the actor's", ge=1)
    log_prob_micro_batch_size_per_gpu: int | None = option(None, "sequences in a micro-batch; null: the actor's", ge=1)
    max_vocabulary_log_probs_gb: float = option(
        4.0, "most memory, in GiB, for a mini-batch's log-probs of the whole vocabulary (KL type full)", gt=0
    )


@dataclass
class CriticConfig:
    """The value model, for advantage estimators that need one. null: as the actor has it."""

    path: str | None = option(None, "model whose body the critic starts from; null: model.path")
    strategy: Any = option(None, "training strategy; null: the actor's")
    optim: OptimConfig = option(help="optimizer", factory=lambda: OptimConfig(lr=1e-5))
    grad_clip: float = option(1.0, "largest gradient norm", gt=0)
    ppo_mini_batch_size: int | None = option(None, "prompts in one optimizer step; null: the actor's", ge=1)
    ppo_epochs: int | None = option(None, "passes over the step's batch; null: the actor's", ge=1)
    ppo_max_token_len_per_gpu: int | None = option(None, "tokens in a micro-batch; null: the actor's", ge=1)
    ppo_micro_batch_size_per_gpu: int | None = option(None, "sequences in a micro-batch; null: the actor's", ge=1)
    value_loss: Any = option("clipped", "value loss")
    cliprange_value: float | None = option(None, "option of the value loss, where it has one", gt=0)
    loss_agg_mode: LossAggMode = option("token-mean", "from per-token terms to the loss")


@dataclass
class ValSamplingConfig:
    """Sampling in evaluation."""

    do_sample: bool = option(False, "false: greedy")
    n: int = option(1, "responses to a prompt", ge=1)
    temperature: float = option(1.0, "with do_sample", gt=0)
    top_p: float = option(1.0, "with do_sample", gt=0, le=1)
    top_k: int = option(-1, "with do_sample; -1: all", ge=-1)


@dataclass
class MultiTurnConfig:
    """Responses in several turns, with an environment that answers between them."""

    environment: Any = option(None, "environment; null: a response is one turn")
    max_assistant_turns: int = option(8, "turns of the policy in a response", ge=1)
    max_turn_length: int | None = option(None, "tokens of one turn; null: what max_response_length leaves", ge=1)
    max_tool_response_length: int = option(
        2048, "characters of one message of the environment; of a longer one the middle is left out", ge=16
    )
    tool_timeout: float = option(30.0, "seconds that the environment may take for one turn", gt=0)
    num_workers: int = option(64, "turns that the environment answers at a time", ge=1)
    score_response: bool = option(
        True, "add the scorer's score of all that the policy wrote to the environment's rewards; false: those alone"
    )


@dataclass
class RolloutConfig:
    """Generation."""

    name: str = option("hf", "rollout backend")
    options: dict[str, Any] = option(help="the backend's own options (corerl plugins show NAME)", factory=dict)
    n: int = option(8, "responses to a prompt", ge=1)
    temperature: float = option(1.0, "of sampling", gt=0)
    top_p: float = option(1.0, "1: all tokens", gt=0, le=1)
    top_k: int = option(-1, "-1: all tokens", ge=-1)
    ignore_eos: bool = option(False, "generate to max_response_length, for measurements")
    timeout: float = option(3600.0, "seconds that the generation of one batch may take", gt=0)
    max_restarts: int = option(3, "times in a run that engines that end are started again; then the run stops", ge=0)
    nnodes: int = option(1, "machines of the engines' own pool, with n_gpus_per_node", ge=1)
    n_gpus_per_node: int = option(
        0, "GPUs of each machine that only the engines use; 0: they share the trainer's", ge=0
    )
    tensor_model_parallel_size: int = option(1, "GPUs that hold one copy of the model", ge=1)
    free_cache_engine: bool | None = option(
        None, "the engine gives its memory back while the policy trains; null: where the two share GPUs"
    )
    verify_weights_freq: int = option(
        1, "compare digests of all weights in every so many updates, and in the first; -1: only in the first", ge=-1
    )
    multi_turn: MultiTurnConfig = option(help="environments", factory=MultiTurnConfig)
    val_kwargs: ValSamplingConfig = option(help="evaluation", factory=ValSamplingConfig)


@dataclass
class RewardConfig:
    """Scores."""

    manager: Any = option("parallel", "reward manager")
    scorer: Any = option(None, "scores every row; null: each data source's own (corerl plugins list)")
    scorers: dict[str, Any] = option(
        help="data source, or pattern such as 'aime*' -> its scorer, before scorer and before the source's own",
        factory=dict,
    )
    num_workers: int = option(4, "scorers that run at a time", ge=1)
    timeout: float = option(
        30.0,
        "seconds that one score may take; in worker processes, waiting for a processor or the disk does not count",
        gt=0,
    )
    memory_limit_gb: float | None = option(None, "option of the reward manager, where it has one", gt=0)
    max_error_rate: float = option(
        0.5, "largest share of a batch's responses that may end without a score; above it the run stops", ge=0, le=1
    )


@dataclass
class TrainerConfig:
    """Length of the run, what is written when."""

    total_epochs: int = option(1, "passes over the training data", ge=1)
    total_training_steps: int | None = option(None, "stop after so many steps; null: total_epochs decides", ge=1)
    seed: int = option(0, "of everything random", ge=0)
    val_before_train: bool = option(True, "evaluate before the first step")
    test_freq: int = option(-1, "evaluate every so many steps and after the last; -1: only after the last", ge=-1)
    save_freq: int = option(-1, "checkpoint every so many steps and after the last; -1: only after the last", ge=-1)
    resume_mode: str = option(
        "auto",
        "auto: go on with the experiment's newest run, from its newest checkpoint, unless it is done; disable: a new "
        "run; or the folder of a run or of one of its checkpoints",
    )
    resume_with_changes: bool = option(False, "go on although config or plugin versions are not the checkpoint's")
    max_restarts: int = option(
        3,
        "times that workers which are lost are started again from the last checkpoint; then the run stops; an hour of "
        "work that reaches a later checkpoint sets the count to 0",
        ge=0,
    )
    max_ckpt_to_keep: int | None = option(None, "older checkpoints are deleted; null: all are kept", ge=1)
    keep_best: str | None = option(None, "metric by which the best checkpoint is kept besides, as checkpoints/best")
    keep_best_mode: Literal["max", "min"] = option("max", "which value of keep_best is the best")
    async_save: bool = option(True, "training goes on while a copy of the state is written")
    save_timeout: float = option(3600.0, "seconds that writing a checkpoint may take", gt=0)
    save_huggingface: Literal["never", "last", "always"] = option(
        "last", "which checkpoints hold a model folder, huggingface/; corerl export makes one of any checkpoint"
    )
    on_save_error: Literal["continue", "stop"] = option(
        "continue", "a checkpoint that cannot be written, of a full disk say: say so and go on, or end the run"
    )
    output_dir: str = option("runs", "run folders are <output_dir>/<experiment_name>/<time>")
    max_staleness: int = option(
        0, "updates that the weights behind a response may lag; above 0 generation goes on during training", ge=0
    )
    offload_while_generating: bool = option(
        False, "keep weights and optimizer state of the training roles on the CPU while the engine generates"
    )
    critic_warmup: int = option(0, "steps at the start in which only the critic is updated", ge=0)
    on_nonfinite: Literal["stop", "skip"] = option(
        "stop", "a NaN or infinite loss, gradient or log-prob: end the run, or leave the update or the samples out"
    )
    log_val_generations: int = option(0, "responses of each evaluation that go to the trackers as a table", ge=0)
    log_rollouts_freq: int = option(10, "write sample rollouts every so many steps; -1: never", ge=-1)
    log_rollouts_tokens: int = option(
        16, "sample rollouts of a step that are written with every token, its log-probs and its advantage", ge=0
    )


@dataclass
class RuntimeConfig:
    """Where workers live."""

    name: str = option("local", "runtime")
    nnodes: int = option(1, "machines", ge=1)
    n_gpus_per_node: int = option(0, "GPUs of each machine, one worker a GPU; 0: workers without a GPU", ge=0)
    options: dict[str, Any] = option(help="the runtime's own options", factory=dict)


@dataclass
class TrackingConfig:
    """Where metrics go, besides metrics.jsonl."""

    loggers: list[Any] = option(help="trackers", factory=lambda: ["console"])
    project_name: str = option("corerl", "")
    experiment_name: str = option("default", "also the name of the run's folder")
    timeout: float = option(60.0, "seconds that a tracker may take for one call before it is given up", gt=0)


@dataclass
class PluginsConfig:
    """Which plugins are loaded."""

    load: list[str] = option(help="Python files with hooks, beside what is installed", factory=list)
    disable: list[str] = option(help="distributions that are left out", factory=list)


@dataclass
class TrainConfig:
    """``corerl train``."""

    model: ModelConfig
    preset: str | None = option(None, "named values in place of this schema's defaults (corerl plugins list)")
    data: DataConfig = option(factory=DataConfig)
    algorithm: AlgorithmConfig = option(factory=AlgorithmConfig)
    actor: ActorConfig = option(factory=ActorConfig)
    ref: RefConfig = option(factory=RefConfig)
    critic: CriticConfig = option(factory=CriticConfig)
    rollout: RolloutConfig = option(factory=RolloutConfig)
    reward: RewardConfig = option(factory=RewardConfig)
    trainer: TrainerConfig = option(factory=TrainerConfig)
    runtime: RuntimeConfig = option(factory=RuntimeConfig)
    tracking: TrackingConfig = option(factory=TrackingConfig)
    plugins: PluginsConfig = option(factory=PluginsConfig)
