"""Every key of the configs of ``corerl sft``, ``corerl dpo`` and ``corerl reward-model``."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from corerl.contracts.config import ModelConfig, OptimConfig, PluginsConfig, RuntimeConfig, TrackingConfig
from corerl.contracts.options import Part, option


@dataclass
class SupervisedDataConfig:
    """Files of rows, and their lengths."""

    train_files: list[str] = option(help="parquet or JSONL files of training rows", factory=list)
    val_files: list[str] = option(help="parquet or JSONL files of validation rows", factory=list)
    train_batch_size: int = option(64, "rows (conversations, pairs) in one optimizer step", ge=1)
    max_length: int = option(2048, "largest number of tokens; rows with longer ones are left out and counted", ge=2)
    shuffle: bool = option(True, "new order in each epoch")
    apply_chat_template_kwargs: dict[str, Any] = option(help="arguments of the chat template", factory=dict)


@dataclass
class SupervisedTrainerConfig:
    """Strategy, length and checkpoints of the training."""

    strategy: Part = option("torch", "training strategy")
    device: Literal["auto", "cpu", "cuda"] = option("auto", "auto: cuda if there is one")
    max_token_len_per_gpu: int | None = option(
        None, "tokens in a micro-batch; null: 16384 on a GPU, 512 on a CPU", ge=1
    )
    grad_clip: float = option(1.0, "largest gradient norm", gt=0)
    total_epochs: int = option(1, "passes over the training data", ge=1)
    total_training_steps: int | None = option(None, "last step of the training; null: from total_epochs", ge=1)
    test_freq: int = option(-1, "steps between validations, and one after the last step; -1: only that one", ge=-1)
    save_freq: int = option(-1, "steps between checkpoints; -1: only if a signal ends the run", ge=-1)
    max_ckpt_to_keep: int | None = option(1, "number of newest checkpoints to keep; null: all", ge=1)
    async_save: bool = option(True, "continue training while a copy of the state is written")
    save_timeout: float = option(3600.0, "deadline of writing a checkpoint, in seconds", gt=0)
    resume_mode: Literal["auto", "disable"] = option(
        "auto", "auto: continue the unfinished run in the output folder from its newest checkpoint; disable: a new run"
    )
    resume_with_changes: bool = option(False, "continue with another config or other versions of plugins")
    max_restarts: int = option(3, "largest number of restarts of lost workers from the last checkpoint", ge=0)
    seed: int = option(0, "seed of all randomness", ge=0)


@dataclass
class SupervisedConfig:
    """The keys that all commands share.

    Attributes:
        task: ``"module:attribute"`` of the :class:`corerl_supervised.tasks.Task` that the command trains.
    """

    task: ClassVar[str]

    model: ModelConfig
    output: str = option(help="folder of the run, and after the last step of the trained Hugging Face model")
    overwrite: bool = option(False, "replace an existing output folder")
    data: SupervisedDataConfig = option(factory=SupervisedDataConfig)
    optim: OptimConfig = option(factory=OptimConfig)
    trainer: SupervisedTrainerConfig = option(factory=SupervisedTrainerConfig)
    runtime: RuntimeConfig = option(factory=RuntimeConfig)
    tracking: TrackingConfig = option(factory=TrackingConfig)
    plugins: PluginsConfig = option(factory=PluginsConfig)


@dataclass
class SftConfig(SupervisedConfig):
    """``corerl sft``."""

    task: ClassVar[str] = "corerl_supervised.sft:SftTask"


@dataclass
class SupervisedReferenceConfig:
    """The reference model."""

    path: str | None = option(None, "Hugging Face folder or hub name; null: model.path")


@dataclass
class DpoConfig(SupervisedConfig):
    """``corerl dpo``."""

    task: ClassVar[str] = "corerl_supervised.dpo:DpoTask"

    loss: Part = option("sigmoid", "preference loss")
    reference_free: bool = option(False, "without a reference model: the score of a response is its log-prob")
    length_normalize: bool = option(False, "divide the score of a response by its number of trained tokens")
    sft_coef: float = option(
        0.0, "coefficient of the cross-entropy of the preferred response, mean over its tokens", ge=0
    )
    ref: SupervisedReferenceConfig = option(factory=SupervisedReferenceConfig)


@dataclass
class RewardModelConfig(SupervisedConfig):
    """``corerl reward-model``."""

    task: ClassVar[str] = "corerl_supervised.reward_model:RewardModelTask"

    targets: Literal["preferences", "scores"] = option(
        "preferences", "preferences: columns chosen and rejected; scores: columns response and score"
    )
    loss: Part = option("bradley_terry", "preference loss, with targets=preferences")
    center_coef: float = option(0.0, "coefficient of the squared sum of both rewards, which keeps them around 0", ge=0)
    pointwise_loss: Literal["squared_error", "cross_entropy"] = option(
        "squared_error", "with targets=scores; cross_entropy: of a score in [0, 1] and the sigmoid of the reward"
    )
