"""What a rank of a test does: one update on its share of pairs."""

from test_objectives import PAIRS, batch, preference_loss

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl_supervised.dpo import pair_batch
from corerl_supervised.objectives import PreferenceObjective
from corerl_torch.balance import balance


def run(job):
    """Metrics and weights after an update by ``fsdp`` on this rank's rows, as a runtime divides them."""
    from corerl_fsdp.fsdp import FsdpStrategy
    from corerl_fsdp.options import FsdpOptions

    head = job["head"]
    spec = StrategySpec(
        ModelConfig(path=job["model"], dtype="fp32"),
        "cpu",
        MicroBatching(max_tokens=60),
        OPTIM,
        grad_clip=1e9,
        head=head,
    )
    strategy = FsdpStrategy(spec, FsdpOptions())
    rows = of_head(head)
    shares = balance(rows.lengths, strategy.data_parallel_size, rows.group_ids, rows.unit_ids)
    means = strategy.update(rows.select(shares[strategy.data_parallel_rank]), objective(head))
    weights = {name: each.clone() for name, each in strategy.weights()}
    return {name: (mean.total, mean.count) for name, mean in means.items()}, weights


OPTIM = OptimConfig(lr=1e-2, eps=0.1)


def of_head(head):
    return batch() if head == "lm" else pair_batch(PAIRS)


def objective(head):
    if head == "lm":
        return PreferenceObjective(preference_loss(), sft_coef=0.3)
    return PreferenceObjective(preference_loss("bradley_terry"), "values", center_coef=0.1)
