"""Rules between keys: what is surely wrong is said before anything is loaded."""

from corerl.config.parts import Parts
from corerl.config.schema import TrainConfig
from corerl.errors import ConfigError

_NOT_PROVIDED = {
    "needs_critic": "a critic (a value model)",
    "needs_greedy_baseline": "the score of a greedy response to every prompt",
    "needs_logits": "the logits of the whole vocabulary",
}


def check(config: TrainConfig, parts: Parts) -> None:
    """Raise ConfigError for the first rule that does not hold."""
    _check_parts(config, parts)
    _check_batches(config)
    _check_sampling(config)
    _check_optimizer(config)
    _check_schedule(config)


def _check_parts(config: TrainConfig, parts: Parts) -> None:
    for key, part in parts.selected():
        entry = part.entry
        for need, words in _NOT_PROVIDED.items():
            if getattr(entry, need):
                raise ConfigError(
                    key, f"{entry.kind} '{entry.name}' needs {words}, which this version of CoreRL does not provide"
                )
        if entry.needs_groups and config.rollout.n < 2:
            raise ConfigError(
                "rollout.n",
                f"must be at least 2, not {config.rollout.n}: {key}={entry.name} compares the responses to one prompt",
            )


def _check_batches(config: TrainConfig) -> None:
    if not config.data.train_files:
        raise ConfigError("data.train_files", "must name at least one parquet file")
    batch, mini = config.data.train_batch_size, config.actor.ppo_mini_batch_size
    if batch < mini:
        raise ConfigError(
            "actor.ppo_mini_batch_size",
            f"{mini} prompts are more than data.train_batch_size, the {batch} prompts of a whole step; "
            f"it must be {batch} or a divisor of it",
        )
    if batch % mini:
        raise ConfigError(
            "data.train_batch_size",
            f"{batch} prompts do not divide into mini-batches of actor.ppo_mini_batch_size={mini} "
            f"({batch} = {batch // mini} × {mini} + {batch % mini}); {batch - batch % mini} would, "
            f"and so would {batch - batch % mini + mini}",
        )


def _check_sampling(config: TrainConfig) -> None:
    rollout, validation = config.rollout, config.rollout.val_kwargs
    for key, top_k in (("rollout.top_k", rollout.top_k), ("rollout.val_kwargs.top_k", validation.top_k)):
        if top_k == 0:
            raise ConfigError(key, "must be at least 1, or -1 for all tokens, not 0")
    if validation.n > 1 and not validation.do_sample:
        raise ConfigError(
            "rollout.val_kwargs.n",
            f"{validation.n} greedy responses to one prompt are all the same: set it to 1, "
            "or rollout.val_kwargs.do_sample to true",
        )


def _check_optimizer(config: TrainConfig) -> None:
    betas = config.actor.optim.betas
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ConfigError("actor.optim.betas", f"must be two numbers of at least 0 and less than 1, not {betas}")


def _check_schedule(config: TrainConfig) -> None:
    trainer = config.trainer
    for name in ("test_freq", "save_freq", "log_rollouts_freq"):
        if getattr(trainer, name) == 0:
            raise ConfigError(f"trainer.{name}", "must be at least 1, or -1, not 0")
    if trainer.test_freq > 0 and not config.data.val_files:
        raise ConfigError(
            "trainer.test_freq",
            f"asks for an evaluation every {trainer.test_freq} steps, but data.val_files names no file",
        )
