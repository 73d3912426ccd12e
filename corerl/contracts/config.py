"""Every key of a training config, with its default, help and range.

A key of type :data:`corerl.contracts.options.Part` selects a registered name: it takes the name or a mapping
``{name: …, option: …}``, whose options are those of the registered part.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from corerl.contracts.options import Part, option

LossAggMode = Literal[
    "token-mean",
    "token-sum",
    "prompt-mean",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
]


@dataclass
class ModelConfig:
    """The trained model."""

    path: str = option(help="Hugging Face folder or hub name with weights, config, tokenizer and chat template")
    load_format: Literal["auto", "dummy"] = option("auto", "dummy: random weights from the config, to try a shape")
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = option("auto", "compute dtype; auto: bf16 on cuda, fp32 on cpu")
    override_config: dict[str, Any] = option(help="values that replace those of the model's config.json", factory=dict)
    attn_implementation: str = option("sdpa", "attention kernels, passed to transformers")
    enable_gradient_checkpointing: bool = option(False, "recompute activations in the backward pass to save memory")
    tokenizer_path: str | None = option(None, "folder or hub name of the tokenizer; null: that of the model")
    chat_template: str | None = option(None, "Jinja file instead of the tokenizer's own template")
    allowed_special: list[str] = option(
        help="control tokens that texts of messages may write, such as <|fim_prefix|>; [all]: every one; letters of "
        "other control tokens stay text",
        factory=list,
    )
    trust_remote_code: bool = option(False, "run Python code from the model's folder")
    lora_rank: int = option(0, "train adapters of this rank instead of the model's weights; 0: no adapters", ge=0)
    lora_alpha: int = option(16, "with lora_rank: adapters are multiplied by lora_alpha / lora_rank", ge=1)
    lora_rslora: bool = option(False, "with lora_rank: divide lora_alpha by the square root of lora_rank (rsLoRA)")
    lora_dora: bool = option(False, "with lora_rank: train the magnitude of each row apart from its direction (DoRA)")
    target_modules: Literal["all-linear"] | list[str] = option(
        "all-linear", "with lora_rank: names of layers, or all-linear: all but the output layer"
    )
    exclude_modules: list[str] = option(help="with lora_rank: names of layers without adapters", factory=list)


@dataclass
class DataConfig:
    """Prompts and their lengths."""

    train_files: list[str] = option(help="parquet files of training prompts, here or of fsspec (s3://…)", factory=list)
    val_files: list[str] = option(help="parquet files of evaluation prompts", factory=list)
    columns: dict[str, str] = option(
        help="column (data_source, prompt, reward_model, …) to its name in the files, if that is another", factory=dict
    )
    train_batch_size: int = option(256, "prompts in a step", ge=1, le=10_000_000)
    gen_batch_size: int | None = option(None, "with filter_groups, prompts at a time; null: train_batch_size", ge=1)
    val_batch_size: int | None = option(None, "prompts generated at a time in evaluation; null: all", ge=1)
    train_max_samples: int | None = option(None, "train on only this many first rows; null: all", ge=1)
    val_max_samples: int | None = option(None, "evaluate only this many first rows; null: all", ge=1)
    max_prompt_length: int = option(512, "largest number of tokens in a prompt", ge=1)
    max_response_length: int = option(512, "largest number of tokens in a response", ge=1)
    filter_overlong_prompts: bool = option(True, "leave out and count prompts longer than max_prompt_length")
    truncation: Literal["error", "left", "right", "middle"] = option(
        "error", "for long prompts: stop, or keep the end (left), the beginning (right) or both ends (middle)"
    )
    shuffle: bool = option(True, "new order in each epoch, from data.seed")
    sampler: Part | None = option(None, "sampler: order of an epoch, such as mixture; null: by data.shuffle")
    seed: int | None = option(None, "seed of the sampler; null: trainer.seed", ge=0)
    apply_chat_template_kwargs: dict[str, Any] = option(help="arguments of the chat template", factory=dict)
    drop_null_fields: bool = option(
        False, "leave null fields out of ground_truth and extra_info: those that Arrow adds to merged structs"
    )
    custom_cls: Part | None = option(None, "./file.py:Class that yields the rows; null: rows of the parquet files")


@dataclass
class KLControlConfig:
    """Coefficient of the KL penalty in the reward."""

    type: Part = option("fixed", "KL controller, which changes the coefficient")
    kl_coef: float = option(0.001, "coefficient at the start", ge=0)


@dataclass
class FilterGroupsConfig:
    """Dynamic sampling: groups without a learning signal are dropped and replaced by further prompts."""

    enable: bool = option(False, "drop groups and generate further prompts")
    filter: Part = option("dynamic_sampling", "batch filter, which selects the groups to keep")
    max_num_gen_batches: int = option(10, "largest number of generated batches in a step; then the run stops", ge=1)


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
    rollout_is_threshold: float = option(2.0, "largest weight; .inf: any", gt=0, le=math.inf)
    rollout_is_threshold_lower: float | None = option(None, "mask, clip: smallest weight; null: 1 / largest", ge=0)
    rollout_is_batch_normalize: bool = option(
        False, "divide the weights by their mean: of token over tokens, of sequence and geometric over responses"
    )
    rollout_rs: str | list[str] | dict[str, Any] | None = option(
        None,
        "by which tokens or whole responses are rejected: a rule, a list of rules, or a mapping of rules to thresholds "
        "such as {token_k1: [0.5, 2], seq_max_k3: 0.1}; null: none",
    )
    rollout_rs_threshold: float = option(
        2.0,
        "upper limit of rules without a limit of their own: of the value for k2, k3 and binary_kl, of the importance "
        "ratio exp(-k1) for k1",
        gt=0,
    )
    rollout_rs_threshold_lower: float | None = option(
        None, "lower limit of the ratio, for k1; null: 1 / the upper", gt=0
    )
    max_log_prob_diff: float | None = option(
        None,
        "stop when log pi_old and log pi_rollout of the same weights differ by more, mean over tokens; null: what "
        "dtype and number of layers let expect, eightfold; .inf: never",
        gt=0,
        le=math.inf,
    )
    bypass_mode: bool = option(
        False,
        "take the rollout backend's log-probs as old_log_probs; rollout_is and rollout_rs then compare the engine with "
        "the policy just before each update",
    )
    score_centering: bool = option(
        False, "subtract the score that the engine's tokens have on average (rollout.record=[top_log_probs])"
    )

    @property
    def acts(self) -> bool:
        """Whether tokens are weighted or rejected."""
        return self.rollout_is not in (None, "none") or self.rollout_rs is not None


@dataclass
class AlgorithmConfig:
    """From scores to advantages."""

    adv_estimator: Part = option("grpo", "advantage estimator")
    use_kl_in_reward: bool = option(False, "subtract kl_coef · KL from each token's reward")
    kl_penalty: Part = option("low_var_kl", "KL type of the penalty in the reward")
    kl_ctrl: KLControlConfig = option(help="coefficient of the penalty in the reward", factory=KLControlConfig)
    filter_groups: FilterGroupsConfig = option(help="dynamic sampling", factory=FilterGroupsConfig)
    rollout_correction: RolloutCorrectionConfig = option(help="engine against trainer", factory=RolloutCorrectionConfig)


@dataclass
class OptimConfig:
    """The optimizer and its schedule."""

    optimizer: Part = option("adamw", "optimizer")
    lr: float = option(1e-6, "learning rate after warm-up", gt=0)
    weight_decay: float = option(0.01, "weight decay of AdamW, for weights with two or more dimensions", ge=0)
    betas: list[float] = option(help="betas of AdamW", factory=lambda: [0.9, 0.999])
    eps: float = option(1e-8, "epsilon of AdamW", gt=0)
    lr_warmup_steps: int = option(0, "optimizer steps with a linear increase of the rate from 0", ge=0)
    lr_warmup_steps_ratio: float = option(0.0, "lr_warmup_steps as a share of the run's optimizer steps", ge=0, le=1)
    lr_scheduler_type: Part = option("constant", "schedule: learning rate after warm-up")
    min_lr_ratio: float = option(0.0, "final share of lr, for schedules that fall", ge=0, le=1)


@dataclass
class ActorConfig:
    """The policy's update."""

    strategy: Part = option("torch", "training strategy")
    device: Literal["auto", "cpu", "cuda"] = option("auto", "auto: cuda if there is one")
    optim: OptimConfig = option(help="optimizer", factory=OptimConfig)
    grad_clip: float = option(1.0, "largest gradient norm; .inf: any", gt=0, le=math.inf)
    ppo_mini_batch_size: int = option(64, "prompts in one optimizer step, each with its rollout.n responses", ge=1)
    ppo_epochs: int = option(1, "passes over the step's batch", ge=1)
    use_dynamic_bsz: bool = option(True, "micro-batches by tokens; false: by sequences")
    ppo_max_token_len_per_gpu: int | None = option(
        None, "tokens in a micro-batch, with use_dynamic_bsz; null: 16384 on a GPU, 512 on a CPU", ge=1
    )
    ppo_micro_batch_size_per_gpu: int = option(8, "sequences in a micro-batch, without use_dynamic_bsz", ge=1)
    policy_loss: Part = option("vanilla", "policy loss")
    loss_agg_mode: LossAggMode = option("token-mean", "aggregation of per-token terms to the loss")
    zero_advantage: Literal["train", "skip", "drop"] = option(
        "train",
        "rows whose advantages are all 0; skip: not computed, as they have no gradient, with all loss weights "
        "unchanged; drop: a prompt with such rows alone is no part of the batch",
    )
    loss_scale_factor: int | None = option(None, "length for seq-mean-token-sum-norm; null: max_response_length", ge=1)
    use_kl_loss: bool = option(False, "add kl_loss_coef · KL(policy || reference) to the loss")
    kl_loss_coef: float = option(0.001, "weight of the KL loss", ge=0)
    kl_loss_type: Part = option("low_var_kl", "KL type of the loss")
    entropy_coeff: float = option(0.0, "weight of the entropy bonus", ge=0)


@dataclass
class RefConfig:
    """The reference model, which is never updated."""

    path: str | None = option(None, "reference model; null: model.path")
    strategy: Part | None = option(
        None, "training strategy of the reference and of teachers, with options of its own; null: the actor's"
    )
    log_prob_max_token_len_per_gpu: int | None = option(None, "tokens in a micro-batch; null: the actor's", ge=1)
    log_prob_micro_batch_size_per_gpu: int | None = option(None, "sequences in a micro-batch; null: the actor's", ge=1)
    overlap_parts: int = option(
        1,
        "parts of a step, each of whole groups, that the reference reads one by one, each as soon as its groups are "
        "complete; 1: after generation",
        ge=1,
    )
    max_vocabulary_log_probs_gb: float = option(4.0, "KL type full: largest GiB of a mini-batch's log-probs", gt=0)


@dataclass
class CriticConfig:
    """The value model, for advantage estimators that need one."""

    path: str | None = option(None, "model whose body the critic starts from; null: model.path")
    model: dict[str, Any] = option(help="keys of the section model with other values for the critic", factory=dict)
    strategy: Part | None = option(None, "training strategy; null: the actor's")
    optim: OptimConfig = option(help="optimizer", factory=lambda: OptimConfig(lr=1e-5))
    grad_clip: float = option(1.0, "largest gradient norm; .inf: any", gt=0, le=math.inf)
    ppo_mini_batch_size: int | None = option(None, "prompts in one optimizer step; null: the actor's", ge=1)
    ppo_epochs: int | None = option(None, "passes over the step's batch; null: the actor's", ge=1)
    ppo_max_token_len_per_gpu: int | None = option(None, "tokens in a micro-batch; null: the actor's", ge=1)
    ppo_micro_batch_size_per_gpu: int | None = option(None, "sequences in a micro-batch; null: the actor's", ge=1)
    value_loss: Part = option("clipped", "value loss")
    loss_agg_mode: LossAggMode = option("token-mean", "aggregation of per-token terms to the loss")


@dataclass
class ValSamplingConfig:
    """Sampling in evaluation."""

    do_sample: bool = option(False, "sample; false: greedy")
    n: int = option(1, "responses to a prompt", ge=1, le=1_000_000)
    temperature: float = option(1.0, "temperature with do_sample", gt=0)
    top_p: float = option(1.0, "top-p with do_sample; 1: all tokens", gt=0, le=1)
    top_k: int = option(-1, "top-k with do_sample; -1: all tokens", ge=-1)
    min_p: float = option(0.0, "min-p with do_sample; 0: all tokens", ge=0, le=1)


@dataclass
class MultiTurnConfig:
    """Responses in several turns, with an agent, such as the one that drives an environment."""

    environment: Part | None = option(None, "environment, which the agent environment drives")
    max_assistant_turns: int = option(8, "turns of the policy in a response", ge=1)
    max_turn_length: int | None = option(None, "tokens of one turn; null: the rest of max_response_length", ge=1)
    max_tool_response_length: int = option(2048, "characters of a message; longer messages lose their middle", ge=16)
    tool_timeout: float = option(30.0, "deadline of one call of the environment, in seconds", gt=0)
    num_workers: int = option(64, "largest number of concurrent calls of the environment", ge=1)
    score_response: bool = option(True, "add the scorer's score of the text to the agent's reward")
    format: str | None = option(
        None,
        "spelling of tool calls and reasoning: hermes, qwen_xml, llama, deepseek, glm, harmony, mistral, plain; null: "
        "by the chat template",
    )
    endpoint: dict[str, Any] = option(help="options of the endpoint for HTTP clients (docs/endpoint.md)", factory=dict)


@dataclass
class RolloutConfig:
    """Generation."""

    name: str = option("hf", "rollout backend")
    options: dict[str, Any] = option(help="options of the backend (corerl plugins show NAME)", factory=dict)
    n: int = option(8, "responses to a prompt", ge=1, le=1_000_000)
    temperature: float = option(1.0, "sampling temperature", gt=0)
    top_p: float = option(1.0, "top-p sampling; 1: all tokens", gt=0, le=1)
    top_k: int = option(-1, "top-k sampling; -1: all tokens", ge=-1)
    min_p: float = option(0.0, "min-p sampling; 0: all tokens", ge=0, le=1)
    record: list[str] = option(
        help="columns of tokens that the engine records and training replays (corerl plugins show NAME); []: none",
        factory=list,
    )
    top_log_probs: int = option(20, "tokens of a position in the column top_log_probs (rollout.record)", ge=1)
    ignore_eos: bool = option(False, "always generate max_response_length tokens, for measurements")
    timeout: float = option(3600.0, "deadline of the generation of one batch, in seconds", gt=0)
    max_concurrent_requests: int | None = option(
        None,
        "largest number of responses under way; others wait, and begin with newer weights; null: as many as the engine "
        "can compute by its reports; no limit for engines that report nothing",
        ge=1,
    )
    max_restarts: int = option(3, "largest number of engine restarts in a run; then all workers are lost", ge=0)
    nnodes: int = option(1, "with n_gpus_per_node: machines of the engines' own GPUs", ge=1, le=100_000)
    n_gpus_per_node: int = option(0, "GPUs of a machine for engines only; 0: those of the trainer", ge=0, le=1_000)
    tensor_model_parallel_size: int = option(1, "GPUs of an engine that divide each layer", ge=1, le=1_000)
    pipeline_model_parallel_size: int = option(1, "stages of an engine, each with as many GPUs", ge=1, le=1_000)
    data_parallel_size: int = option(1, "parts of an engine with all layers; all share the experts", ge=1, le=1_000)
    free_cache_engine: bool | None = option(None, "free engine memory in training; null: true with shared GPUs")
    lora: Literal["adapter", "merged"] | None = option(
        None,
        "with model.lora_rank: the engine has the base and gets adapters, or gets all weights with adapters merged; "
        "null: adapter if the engine can (docs/adapters.md)",
    )
    adapters: int = option(1, "adapters that an engine holds at a time, for several policies (docs/tinker.md)", ge=1)
    verify_weights_freq: int = option(1, "updates between comparisons of all weights; -1: only the first", ge=-1)
    agent: Part | None = option(None, "agent that plays each response; null: one turn, or multi_turn.environment")
    agent_timeout: float = option(3600.0, "deadline of one episode of an agent, in seconds; it has no score", gt=0)
    num_workers: int = option(
        0,
        "processes that play the episodes of an agent, decode and score, beside as many, at most 16, with the rows of "
        "each step, under runtime 'ray' on all nodes; 0: the controller does",
        ge=0,
        le=10_000,
    )
    multi_turn: MultiTurnConfig = option(help="episodes", factory=MultiTurnConfig)
    val_kwargs: ValSamplingConfig = option(help="evaluation", factory=ValSamplingConfig)

    @property
    def gpus_per_engine(self) -> int:
        """Tensor × pipeline × data parallel ranks."""
        return self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.data_parallel_size


@dataclass
class RewardConfig:
    """Scores."""

    manager: Part = option("parallel", "reward manager")
    scorer: Part | None = option(None, "scorer of every row; null: each data source's own (corerl plugins list)")
    scorers: dict[str, Part] = option(
        help="data source, or pattern such as 'aime*', to scorer; overrides scorer and the data source's own",
        factory=dict,
    )
    num_workers: int = option(4, "concurrent scorers, those of all processes together", ge=1, le=10_000)
    timeout: float = option(
        30.0,
        "deadline of one score in seconds; in worker processes, without waits for a processor or the disk",
        gt=0,
    )
    max_error_rate: float = option(0.5, "largest share of a batch without a score; beyond, the run stops", ge=0, le=1)


@dataclass
class TrainerConfig:
    """Length of the run, evaluation, checkpoints and other output."""

    total_epochs: int = option(1, "passes over the training data", ge=1)
    total_training_steps: int | None = option(None, "last step of the run; null: from total_epochs", ge=1)
    seed: int = option(0, "seed of all randomness", ge=0)
    bitwise: bool = option(False, "equal bits of log-probs in engine and trainer (docs/bitwise.md)")
    val_before_train: bool = option(True, "evaluate before the first step")
    test_freq: int = option(-1, "steps between evaluations, and one after the last step; -1: only that one", ge=-1)
    save_freq: int = option(-1, "steps between checkpoints, and one after the last step; -1: only that one", ge=-1)
    resume_mode: str = option(
        "auto",
        "auto: continue the experiment's newest run from its newest checkpoint, unless it is finished; disable: a new "
        "run; or the folder, or the URL of a copy (remote_dir), of a run or of a checkpoint",
    )
    resume_with_changes: bool = option(False, "continue with another config or other versions of plugins")
    max_restarts: int = option(
        3,
        "largest number of restarts of lost workers from the last checkpoint; then the run stops. An hour of work "
        "that reaches a later checkpoint sets the count to 0",
        ge=0,
    )
    max_ckpt_to_keep: int | None = option(None, "number of newest checkpoints to keep; null: all", ge=1)
    keep_best: str | None = option(None, "metric; the best checkpoint is also kept, as checkpoints/best")
    keep_best_mode: Literal["max", "min"] = option("max", "best value of keep_best")
    async_save: bool = option(True, "continue training while a copy of the state is written")
    save_timeout: float = option(3600.0, "deadline of writing a checkpoint, in seconds", gt=0)
    save_huggingface: Literal["never", "last", "always"] = option(
        "last", "checkpoints with a model folder, huggingface/; corerl export makes one from any checkpoint"
    )
    on_save_error: Literal["continue", "stop"] = option(
        "continue", "if a checkpoint cannot be written (full disk): print a notice and continue, or stop"
    )
    remote_dir: str | None = option(
        None, "folder of fsspec, such as s3://bucket/folder, that gets a copy of each complete checkpoint; null: none"
    )
    remote_timeout: float = option(3600.0, "deadline of a copy to remote_dir, or from it, in seconds", gt=0)
    output_dir: str = option("runs", "folder of runs: <output_dir>/<experiment_name>/<time>")
    max_staleness: int = option(0, "largest age of weights in updates; above 0, training overlaps generation", ge=0)
    batch_order: Literal["fifo", "windowed", "first_finished"] | None = option(
        None,
        "groups of a step: fifo: the next of the data; windowed: the first finished of the next train_batch_size + "
        "batch_window; first_finished: the first finished, which favours short responses; null: windowed with "
        "max_staleness, fifo without",
    )
    batch_window: int | None = option(
        None,
        "groups beyond a batch: for windowed (null: a batch), or begun and aborted by each step (null: none)",
        ge=1,
    )
    offload_while_generating: bool = option(False, "keep the training models on the CPU during generation")
    critic_warmup: int = option(0, "first steps, which update only the critic", ge=0)
    on_nonfinite: Literal["stop", "skip"] = option(
        "stop", "for a NaN or infinite loss, gradient or log-prob: stop, or skip the update or leave out the samples"
    )
    log_val_generations: int = option(0, "responses of each evaluation to send to the trackers as a table", ge=0)
    log_rollouts_freq: int = option(10, "steps between sample rollouts; -1: none", ge=-1)
    log_rollouts_tokens: int = option(16, "sample rollouts of a step with tokens, log-probs and advantages", ge=0)
    profile: dict[str, Any] = option(help="profiles of chosen steps and ranks (docs/profiling.md)", factory=dict)


@dataclass
class RuntimeConfig:
    """Processes and machines of workers."""

    name: str = option("local", "runtime")
    nnodes: int = option(1, "number of machines", ge=1, le=100_000)
    n_gpus_per_node: int = option(0, "GPUs of a machine, with a worker each; 0: workers without a GPU", ge=0, le=1_000)
    options: dict[str, Any] = option(help="options of the runtime (corerl plugins show NAME)", factory=dict)


@dataclass
class TrackingConfig:
    """Destinations of metrics, in addition to metrics.jsonl."""

    loggers: list[Part] = option(help="trackers", factory=lambda: ["console"])
    project_name: str = option("corerl", "project of the trackers")
    experiment_name: str = option("default", "name in the trackers, and of the folder of runs")
    timeout: float = option(60.0, "deadline of one call in seconds; a late tracker is called no more", gt=0)


@dataclass
class PluginsConfig:
    """Plugins to load and to leave out."""

    load: list[str] = option(help="Python files with hooks, in addition to installed plugins", factory=list)
    disable: list[str] = option(help="distributions to leave out", factory=list)


@dataclass
class TrainConfig:
    """``corerl train``."""

    model: ModelConfig
    preset: str | None = option(None, "named set of values that replace defaults (corerl plugins list)")
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
