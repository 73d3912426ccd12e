import pytest

from corerl.contracts.config import DataConfig, ModelConfig, RolloutConfig, TrainConfig
from corerl.errors import ConfigError
from corerl_check import Machine
from corerl_check.size import ModelSize, model_size
from corerl_fsdp.options import FsdpOptions, TorchOptions
from families import write_config


def found(options, n=8, key="actor.strategy"):
    data = DataConfig(max_prompt_length=4096, max_response_length=512)
    config = TrainConfig(model=ModelConfig("m"), data=data, rollout=RolloutConfig(n=n))
    return list(options.examine(key, config, Machine(gpus=1)))


def test_the_tokens_that_sharing_saves_are_a_note():
    (note,) = found(FsdpOptions())
    assert found(FsdpOptions(context_parallel_size=2)) == [note]
    assert (note.severity, note.key) == ("note", "actor.strategy.share_prefixes")
    assert note.sentence == (
        "a prompt is computed once for its 8 responses: at most 4096 + 8 x 512 = 8,192 tokens a group instead of "
        "36,864, 4.5 times fewer"
    )


@pytest.mark.parametrize(
    "options", [TorchOptions(), FsdpOptions(share_prefixes=False), FsdpOptions(ulysses_sequence_parallel_size=2)]
)
def test_nothing_is_noted_if_prefixes_are_not_shared(options):
    assert found(options) == [] == found(FsdpOptions(), n=1) == found(FsdpOptions(), key="critic.strategy")


def test_with_the_offload_policy_the_gpu_holds_layers_in_use_alone(tmp_path):
    model = ModelConfig(str(write_config(tmp_path, "qwen2")), dtype="bf16")
    size = model_size(model, "cuda")
    for ranks in (1, 2):
        kept, share = (FsdpOptions(offload_policy=on).share(size, ranks, model, updated=True) for on in (False, True))
        assert share.at_rest == share.optimizer == 0 < kept.optimizer
        assert share.weights == size.bytes * (size.beside + 2 * size.layer) < kept.weights
        assert share.gradients == 4 * (size.beside + size.layer) < kept.gradients
    config = TrainConfig(model)
    with pytest.raises(ConfigError, match=r"actor\.strategy\.param_offload: must be false with offload_policy"):
        FsdpOptions(offload_policy=True, param_offload=True).check("actor.strategy", config)
    config.actor.optim.optimizer = "muon"
    with pytest.raises(ConfigError, match="has no optimizer muon"):
        FsdpOptions(offload_policy=True).check("actor.strategy", config)


def test_on_a_cpu_nothing_is_offloaded(tmp_path):
    """There is no other memory: a rank holds what it holds without these options."""
    model = ModelConfig(str(write_config(tmp_path, "qwen2")))
    size = model_size(model, "cpu")
    kept = FsdpOptions().share(size, 2, model, updated=True)
    for name in ("param_offload", "optimizer_offload", "offload_policy", "activation_offload"):
        assert FsdpOptions(**{name: True}).share(size, 2, model, updated=True) == kept


def test_a_rank_of_a_shard_group_holds_what_it_holds_without_further_groups(tmp_path):
    folder = str(write_config(tmp_path, "qwen2"))
    size = model_size(ModelConfig(folder), "cpu")
    alone, group = FsdpOptions().share(size, 2, ModelConfig(folder), updated=True), FsdpOptions(fsdp_size=2)
    assert group.share(size, 8, ModelConfig(folder), updated=True) == alone


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fsdp_size": 0}, "is 0, and must be a number of ranks, or -1 for all"),
        ({"fsdp_size": 2, "expert_parallel_size": 2}, "must be -1 with expert_parallel_size, whose experts have no"),
    ],
)
def test_groups_of_ranks_that_do_not_go_together_are_refused_by_the_check(options, message):
    with pytest.raises(ConfigError, match=rf"^critic\.strategy\.fsdp_size: {message}"):
        FsdpOptions(**options).check("critic.strategy", TrainConfig(model=ModelConfig("m")))


@pytest.mark.parametrize(
    ("options", "name", "message"),
    [
        ({"tensor_model_parallel_size": 3}, "tensor_model", "3 does not divide the 8 GPUs"),
        ({"ulysses_sequence_parallel_size": 3}, "ulysses_sequence", "3 does not divide the 8 GPUs"),
        (
            {"context_parallel_size": 4, "ulysses_sequence_parallel_size": 2, "tensor_model_parallel_size": 2},
            "context",
            "4 does not divide the 8 GPUs in groups of 4",
        ),
        (
            {"context_parallel_size": 2, "use_remove_padding": False},
            "context",
            "2 slices packed rows: it needs use_remove_padding=true",
        ),
    ],
)
def test_groups_that_share_rows_must_divide_the_gpus_and_pack(options, name, message):
    config = TrainConfig(model=ModelConfig("m"))
    config.runtime.n_gpus_per_node = 8
    with pytest.raises(ConfigError) as caught:
        FsdpOptions(**options).check("actor.strategy", config)
    assert str(caught.value) == f"actor.strategy.{name}_parallel_size: {message}"


def test_groups_that_share_rows_must_divide_the_ranks_of_the_actor():
    config = TrainConfig(model=ModelConfig("m"))
    config.runtime.n_gpus_per_node, config.runtime.options = 8, {"ranks": {"actor": 6}}
    FsdpOptions(context_parallel_size=3).check("actor.strategy", config)
    with pytest.raises(ConfigError, match="context_parallel_size: 4 does not divide the 6 ranks of the actor"):
        FsdpOptions(context_parallel_size=4).check("actor.strategy", config)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (TorchOptions(share_prefixes=True), "among padded rows (use_remove_padding=false)"),
        (
            FsdpOptions(share_prefixes=True, ulysses_sequence_parallel_size=2),
            "if 2 ranks share the tokens of a row (ulysses_sequence_parallel_size)",
        ),
    ],
)
def test_sharing_that_is_asked_for_and_not_possible_is_an_error(options, reason):
    (error,) = found(options)
    assert str(error) == f"actor.strategy.share_prefixes: prefixes cannot be shared {reason}"


def test_expert_ranks_hold_gathered_weights_and_gradients_of_their_own_experts():
    """By hand: 2 layers of 40 parameters, 32 of them in 4 experts, and 10 parameters beside; 4 ranks, bf16."""
    size = ModelSize(
        *(90, 90, 40, 10, 2, 8, 8, 2, 2, 4, 10, 2, 64), in_experts=64, experts_of_token=2
    )  # parameters, trained, of a layer, beside, layers …
    model = ModelConfig("x", dtype="bf16")
    stored = 4 * 90 / 4
    for experts, gathered, gradients in ((1, 10 + 2 * 40, 90), (2, 10 + 2 * (8 + 16), 26 + 32), (4, 10 + 2 * 16, 42)):
        share = FsdpOptions(expert_parallel_size=experts).share(size, 4, model, updated=True)
        assert (share.weights, share.gradients) == pytest.approx((stored + 2 * gathered, 4 * gradients))
        assert share.optimizer == 8 * 90 / 4
