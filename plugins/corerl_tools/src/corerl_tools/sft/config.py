"""Every key of a ``corerl sft`` config."""

from dataclasses import dataclass
from typing import Any, Literal

from corerl.contracts.config import ModelConfig, OptimConfig, PluginsConfig
from corerl.contracts.options import option


@dataclass
class SftDataConfig:
    """Conversations: parquet or JSONL files with a column ``messages``."""

    train_files: list[str] = option(help="parquet or JSONL files of training conversations", factory=list)
    val_files: list[str] = option(help="parquet or JSONL files of validation conversations", factory=list)
    train_batch_size: int = option(64, "conversations in one optimizer step", ge=1)
    max_length: int = option(2048, "largest number of tokens; longer conversations are left out and counted", ge=2)
    shuffle: bool = option(True, "new order in each epoch")
    apply_chat_template_kwargs: dict[str, Any] = option(help="arguments of the chat template", factory=dict)


@dataclass
class SftTrainerConfig:
    """Strategy and length of the training."""

    strategy: Any = option("torch", "training strategy")
    device: Literal["auto", "cpu", "cuda"] = option("auto", "auto: cuda if there is one")
    max_token_len_per_gpu: int = option(16384, "tokens in a micro-batch", ge=1)
    grad_clip: float = option(1.0, "largest gradient norm", gt=0)
    total_epochs: int = option(1, "passes over the training data", ge=1)
    total_training_steps: int | None = option(None, "last step of the training; null: from total_epochs", ge=1)
    test_freq: int = option(-1, "steps between validations, and one after the last step; -1: only that one", ge=-1)
    seed: int = option(0, "seed of all randomness", ge=0)


@dataclass
class SftConfig:
    """``corerl sft``."""

    model: ModelConfig
    output: str = option(help="folder for the trained Hugging Face model")
    overwrite: bool = option(False, "replace an existing output folder")
    data: SftDataConfig = option(factory=SftDataConfig)
    optim: OptimConfig = option(factory=OptimConfig)
    trainer: SftTrainerConfig = option(factory=SftTrainerConfig)
    plugins: PluginsConfig = option(factory=PluginsConfig)
