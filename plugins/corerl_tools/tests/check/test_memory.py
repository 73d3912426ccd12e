"""The estimate of GPU memory against peaks measured on an H200 (docs/performance/one-gpu.md) and arithmetic by hand."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import pytest
import transformers

from corerl.config.load import load
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import ConfigError, ModelError
from corerl.plugins import load_plugins
from corerl.registry.parts import resolve_parts
from corerl_check.contract import MainMemory
from corerl_check.machine import GIB, Machine
from corerl_check.shares import whole
from corerl_check.size import ModelSize, model_size
from corerl_fsdp.options import FsdpOptions, TorchOptions
from corerl_hf.options import HfOptions
from corerl_megatron.options import MegatronOptions
from corerl_testing.published_shapes import published_config
from corerl_tools.check.memory import Estimate, estimate
from corerl_tools.check.memory_findings import look
from corerl_tools.check.memory_parts import Phase, Tokens, activations, logits
from corerl_vllm.options import VllmOptions

PARAMETERS = 1_543_714_304
"""of Qwen2.5-1.5B, tied embedding counted once"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shape")
    published_config("qwen2.5-1.5b").save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> ModelConfig:
    return ModelConfig(str(folder), dtype="bf16", enable_gradient_checkpointing=True)


@pytest.fixture(scope="module")
def size(model: ModelConfig) -> ModelSize:
    return model_size(model, "cuda")


def test_the_size_is_that_of_the_published_model(size: ModelSize) -> None:
    assert size.parameters == size.trained == PARAMETERS
    assert (size.layers, size.hidden, size.heads, size.key_value_heads, size.head_size) == (28, 1536, 12, 2, 128)
    assert size.cache_bytes == 28 * 2 * 2 * 128 * 2
    assert size.in_experts == size.output == 0  # the output layer is the embedding


@pytest.mark.parametrize(
    ("compiled", "chunk", "measured"),
    [(False, None, 49.2), (False, 1024, 30.0), (True, 1024, 29.2), (True, 4096, 30.2), (True, None, 34.7)],
)
def test_an_update_of_1_5b_takes_what_was_measured(
    size: ModelSize, model: ModelConfig, compiled: bool, chunk: int | None, measured: float
) -> None:
    """benchmarks/gpu/fsdp_update.py: 25 rows of 128 + 512 tokens in a micro-batch."""
    options = FsdpOptions(compile=compiled, logits_chunk_size=chunk)
    share, tokens = options.share(size, 1, model, updated=True), Tokens(25 * 640, 25 * 512, 640)
    fixed = share.weights + share.gradients + share.optimizer
    estimated = (fixed + activations(size, tokens, share) + logits(size, tokens, share)) / GIB
    assert 0.99 * measured < estimated < 1.05 * measured


def test_one_undivided_model_takes_18_bytes_a_parameter(size: ModelSize, model: ModelConfig) -> None:
    share = TorchOptions().share(size, 1, model, updated=True)
    assert share.weights + share.gradients + share.optimizer == 18 * PARAMETERS
    assert share.at_rest == 12 * PARAMETERS
    reference = TorchOptions().share(size, 1, model, updated=False)
    assert (reference.weights, reference.gradients, reference.optimizer) == (2 * PARAMETERS, 0, 0)


def test_fsdp_divides_what_is_stored_and_offloads(size: ModelSize, model: ModelConfig) -> None:
    share = FsdpOptions().share(size, 8, model, updated=True)
    assert share.at_rest == share.optimizer + 4 * PARAMETERS / 8 == 12 * PARAMETERS / 8
    assert share.weights == 4 * PARAMETERS / 8 + 2 * (size.beside + 2 * size.layer)
    offloaded = FsdpOptions(param_offload=True, optimizer_offload=True).share(size, 8, model, updated=True)
    assert offloaded.at_rest == 0
    assert offloaded.optimizer_apart


def test_megatron_divides_by_tensor_pipeline_and_data_parallel(size: ModelSize, model: ModelConfig) -> None:
    options = MegatronOptions(tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
    share = options.share(size, 8, model, updated=True)  # two copies of the model
    own = PARAMETERS / 4
    assert (share.weights, share.gradients, share.optimizer) == (2 * own, 4 * own, 12 * own / 2)
    alone = dataclasses.replace(options, use_distributed_optimizer=False).share(size, 8, model, updated=True)
    assert alone.optimizer == 12 * own


def test_lora_trains_adapters_alone(model: ModelConfig) -> None:
    """By hand: rank 8 on q, k, v, o (1536 -> 1536, 256, 256, 1536) and gate, up, down (1536 <-> 8960)."""
    size = model_size(dataclasses.replace(model, lora_rank=8), "cuda")
    a_layer = 8 * (2 * (1536 + 1536) + 2 * (1536 + 256) + 3 * (1536 + 8960))
    assert size.trained == 28 * a_layer
    assert whole(size, model, updated=True).optimizer == 8 * 28 * a_layer
    one = dataclasses.replace(model, lora_rank=8, target_modules=["q_proj"])
    assert model_size(one, "cuda").trained == 28 * 8 * 3072


def test_a_tied_output_layer_is_refused_and_one_of_its_own_is_counted(model: ModelConfig, tmp_path: Path) -> None:
    head = dataclasses.replace(model, lora_rank=8, target_modules=["lm_head"])
    with pytest.raises(
        ConfigError, match=r"^model\.target_modules: lm_head has the same weight as model\.embed_tokens"
    ):
        model_size(head, "cuda")
    config = published_config("qwen2.5-1.5b")
    config.tie_word_embeddings = False
    config.save_pretrained(tmp_path)
    assert model_size(dataclasses.replace(head, path=str(tmp_path)), "cuda").trained == 8 * (1536 + 151_936)


@pytest.mark.parametrize(
    ("config", "heads", "width"),
    [
        (transformers.Mamba2Config(hidden_size=64, num_heads=2, num_hidden_layers=2), 0, 256),
        (transformers.GPTNeoConfig(num_layers=2, attention_types=[[["global"], 2]], hidden_size=64), 16, 256),
        (
            transformers.Gemma3nTextConfig(num_hidden_layers=2, intermediate_size=[48, 96], num_kv_shared_layers=0),
            8,
            96,
        ),
    ],
    ids=lambda each: getattr(each, "model_type", None),
)
def test_families_without_attention_or_with_widths_of_their_own_have_a_size(
    tmp_path: Path, config: transformers.PreTrainedConfig, heads: int, width: int
) -> None:
    config.save_pretrained(tmp_path)
    size = model_size(ModelConfig(str(tmp_path)), "cpu")
    assert (size.layers, size.heads, size.intermediate) == (2, heads, width)
    assert (size.cache_bytes == 0) == (heads == 0)


def test_a_config_without_a_number_of_layers_is_one_error(tmp_path: Path) -> None:
    transformers.BltConfig().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"^model\.path: the size of .* cannot be computed: AttributeError: .*layers"):
        model_size(ModelConfig(str(tmp_path)), "cpu")


def test_eager_attention_keeps_its_scores_and_checkpointing_little(size: ModelSize, model: ModelConfig) -> None:
    share, tokens = whole(size, model, updated=True), Tokens(1000, 500, 500)
    eager = activations(dataclasses.replace(size, stores_scores=True), tokens, share)
    assert eager - activations(size, tokens, share) == 1000 * 500 * 12 * 6
    everything = activations(size, tokens, dataclasses.replace(share, recomputed=0.0))
    assert activations(size, tokens, share) == everything / 28 + 28 * 1000 * 1536 * 2


def test_recomputed_layers_keep_their_input(size: ModelSize, model: ModelConfig) -> None:
    plain, tokens = dataclasses.replace(model, enable_gradient_checkpointing=False), Tokens(1000, 500, 500)

    def kept(layers: int | None) -> float:
        return activations(size, tokens, FsdpOptions(recompute_layers=layers).share(size, 1, plain, updated=True))

    a_layer = kept(None) / 28
    assert kept(0) == kept(None)
    assert kept(7) == pytest.approx(22 * a_layer + 7 * 1000 * 1536 * 2)
    assert kept(28) == kept(99) == pytest.approx(a_layer + 28 * 1000 * 1536 * 2)


def test_context_parallel_ranks_keep_the_keys_of_all(size: ModelSize, model: ModelConfig) -> None:
    """By hand: 2 x 2 heads of 128 numbers a token in bf16, and float32 sums and gradients of one layer's."""
    tokens = Tokens(8000, 4000, 8000)
    by_heads, by_context = (
        dataclasses.replace(options.share(size, 8, model, updated=True), recomputed=0.0)
        for options in (FsdpOptions(ulysses_sequence_parallel_size=4), FsdpOptions(context_parallel_size=4))
    )
    assert by_context.context == by_heads.context == 4
    more = activations(size, tokens, by_context) - activations(size, tokens, by_heads)
    assert more == 8000 * 512 * (28 * 2 + 8)


def test_an_engine_leaves_its_share_beside_the_weights_to_the_cache(folder: Path, size: ModelSize) -> None:
    config = load(TrainConfig, None, [f"model.path={folder}", "rollout.tensor_model_parallel_size=2"])
    share = VllmOptions(gpu_memory_utilization=0.5).generation(size, config, Machine(1, 80 * GIB))
    assert share.total == pytest.approx(40 * GIB)
    assert share.weights == PARAMETERS and share.bytes_per_token == size.cache_bytes / 2
    two = VllmOptions(gpu_memory_utilization=0.5, replicas=2).generation(size, config, Machine(1, 80 * GIB))
    assert two.total == pytest.approx(40 * GIB) and two.weights == 2 * share.weights
    assert (
        HfOptions(max_batch_size=4).generation(size, config, Machine(1, None)).kv_cache == 4 * 1024 * size.cache_bytes
    )


@functools.cache
def size_of(folder: Path) -> ModelSize:
    return model_size(ModelConfig(str(folder), dtype="bf16"), "cuda")


def planned(folder: Path, *overrides: str, roles: Sequence[str] = ("actor",)) -> Estimate:
    """Of a run on GPUs of 80 GiB, with a reference if it needs one."""
    written = [f"model={{path: {folder}, dtype: bf16}}", "data.train_files=[x.parquet]", *overrides]
    config = load(TrainConfig, None, written)
    parts = resolve_parts(config, load_plugins().registries)
    sizes = dict.fromkeys([*roles, *(["ref"] if parts.needs_ref else [])], size_of(folder))
    machine = Machine(1, 80 * GIB, planned=True)
    return estimate(config, parts, sizes, machine, frees_engine=config.rollout.free_cache_engine is not False)


def test_who_shares_a_gpu_takes_the_larger_of_both_phases_and_what_stays(folder: Path) -> None:
    vllm = ["actor.strategy=fsdp", "rollout.name=vllm"]
    update, generation = planned(folder, *vllm).phases
    assert generation.parts["actor at rest"] == 12 * PARAMETERS
    assert update.parts["engine"] < 2 * GIB
    kept, _ = planned(folder, *vllm, "rollout.free_cache_engine=false").phases
    assert kept.parts["engine"] == pytest.approx(40 * GIB)
    _, moved = planned(folder, *vllm, "trainer.offload_while_generating=true").phases
    assert "actor at rest" not in moved.parts
    apart = planned(folder, *vllm, "rollout.n_gpus_per_node=1")
    assert "engine" not in apart.phases[0].parts and apart.apart == {"generation"}


def test_a_critic_with_ranks_of_its_own_is_estimated_by_their_number_and_place(folder: Path) -> None:
    keys = ["actor.strategy=fsdp", "rollout.name=vllm", "algorithm.adv_estimator=gae", "runtime.name=ray"]
    both = planned(folder, *keys, "runtime.n_gpus_per_node=2", roles=("actor", "critic"))
    keys += ["runtime.n_gpus_per_node=4", "runtime.options.ranks.critic=2"]
    fewer = planned(folder, *keys, roles=("actor", "critic"))
    assert fewer.phases[1].parts["weights"] == both.phases[1].parts["weights"] > fewer.phases[0].parts["weights"]
    assert fewer.phases[0].parts["critic at rest"] == both.phases[0].parts["critic at rest"]
    apart = planned(folder, *keys, "runtime.options.apart=[critic]", roles=("actor", "critic"))
    assert apart.apart == {"update of the critic"}
    assert not {"critic at rest", "actor at rest", "engine"} & apart.phases[1].parts.keys()
    assert "critic at rest" not in apart.phases[0].parts and "critic at rest" not in apart.phases[2].parts


def test_the_reference_is_moved_away_by_its_own_strategy(folder: Path) -> None:
    asked = ["actor.strategy=fsdp", "actor.use_kl_loss=true"]
    assert planned(folder, *asked).phases[0].parts["ref at rest"] == 2 * PARAMETERS
    own = planned(folder, *asked, "ref.strategy={name: fsdp, param_offload: true}")
    assert own.phases[0].parts["ref at rest"] == 0 and own.phases[1].parts["actor at rest"] == 12 * PARAMETERS


def test_the_sequences_that_fit_are_counted(folder: Path) -> None:
    found = planned(folder, "rollout.name=vllm", "data.max_response_length=3584", "data.train_batch_size=100")
    room = 40 * GIB - 2 * PARAMETERS - 2 * GIB
    assert found.sequences == int(room // (28 * 2 * 2 * 128 * 2 * 4096))
    assert found.wanted == 800


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["trainer.max_staleness=1"], "time in which the GPU would be idle"),
        (
            ["trainer.max_staleness=1", "data.train_batch_size=8", "actor.ppo_mini_batch_size=8"],
            "compare timing_s/step",
        ),
        (["trainer.max_staleness=1", "rollout.n_gpus_per_node=1"], ""),
        ([], ""),
    ],
)
def test_generation_beside_training_on_one_gpu_pays_if_the_engine_waits_for_the_cpu_and_mps_runs(
    folder: Path, overrides: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ["rollout.name=vllm", "rollout.free_cache_engine=false", *overrides]
    config = load(TrainConfig, None, [f"model.path={folder}", *keys])

    def sentences() -> list[str]:
        notes = look(planned(folder, *keys), Machine(1, 80 * GIB), config)
        return [each.sentence for each in notes if each.key == "trainer.max_staleness"]

    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert ["nvidia-cuda-mps-control -d" in each for each in sentences()] == [True] * bool(told)
    (tmp_path / "control").touch()  # MPS listens there
    assert [told in each for each in sentences()] == [True] * bool(told)


def test_what_does_not_fit_is_an_error_with_the_arithmetic(folder: Path) -> None:
    config = load(TrainConfig, None, [f"model.path={folder}"])
    phase = Phase("update of the actor", {"weights": 30 * GIB, "gradients": 12 * GIB})
    [found] = look(Estimate((phase,), None, 1), Machine(1, 40 * GIB), config)
    assert found.severity == "error" and found.problem == "GPU memory too small"
    assert "42.0 GiB (weights 30.0 + gradients 12.0) of GPU memory, and the GPU has 40.0" in found.sentence
    [found] = look(Estimate((phase,), None, 1), Machine(1, 43 * GIB), config)
    assert found.severity == "warning"
    assert not list(look(Estimate((phase,), None, 1), Machine(1, 80 * GIB), config))
    [found] = look(Estimate((phase,), 0, 1), Machine(1), config)
    assert (found.severity, found.problem) == ("error", "no room for the KV cache")
    [found] = look(Estimate((phase,), 7, 64), Machine(1), config)
    assert (found.severity, found.problem) == ("warning", "no room for the KV cache")
    assert "the 8 responses to one prompt (rollout.n) do not fit together" in found.sentence
    [found] = look(Estimate((phase,), 8, 64), Machine(1), config)
    assert found.severity == "note"
    generation = Phase("generation", {"KV cache": 50 * GIB})
    [found] = look(Estimate((generation,), None, 1), Machine(1, 40 * GIB), config)
    assert (found.severity, found.problem) == ("error", "generation does not fit")


SMOL = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
SMOL |= {"num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True}
"""SmolLM2-135M"""


@pytest.fixture(scope="module")
def smol(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig

    path = tmp_path_factory.mktemp("smol")
    LlamaConfig(**SMOL).save_pretrained(path)
    return path


def on_cpu(folder: Path, *overrides: str, roles: Sequence[str] = ("actor",)) -> Estimate:
    written = [f"model.path={folder}", "data.train_files=[x.parquet]", "data.max_prompt_length=256", *overrides]
    config = load(TrainConfig, None, ["data.max_response_length=128", "data.train_batch_size=4", *written])
    parts = resolve_parts(config, load_plugins().registries)
    sizes = dict.fromkeys(roles, model_size(ModelConfig(str(folder)), "cpu"))
    return estimate(config, parts, sizes, Machine(0), frees_engine=False, device="cpu")


def test_the_phases_of_a_cpu_hold_all_models_in_one_memory(smol: Path) -> None:
    """By hand: 134,515,008 float32 parameters, two moments of AdamW, and a copy of all three for a checkpoint."""
    model = 4 * 134_515_008
    found = on_cpu(smol, "rollout.n=4")
    update, generation, checkpoint = found.phases
    assert [each.name for each in found.phases] == ["update of the actor", "generation", "checkpoint"]
    assert (update.parts["weights"], update.parts["gradients"], update.parts["optimizer"]) == (model, model, 2 * model)
    assert update.parts["engine"] == model  # the engine's own copy; its cache exists in generation alone
    a_token = 4 * (15 * 64 + 9 * 64 + 4 * 1536) + 32 * 576  # of one layer, bytes
    assert update.parts["activations"] == pytest.approx(30 * 512 * a_token)  # a micro-batch of 512 tokens
    assert update.parts["logits"] == 512 * 49152 * 12
    assert generation.parts["KV cache"] == 16 * 384 * 2 * 30 * 3 * 64 * 4
    assert checkpoint.parts["copy of the actor"] == checkpoint.parts["actor at rest"] == 3 * model


def test_the_real_models_take_what_was_measured(smol: Path) -> None:
    """GRPO of SmolLM2-135M, 4 x 4 responses of 128 tokens: GiB of all processes in an update and in a checkpoint."""
    update, _, checkpoint = on_cpu(smol, "rollout.n=4").phases
    assert update.total / GIB == pytest.approx(4.21, rel=0.1)
    assert checkpoint.total / GIB == pytest.approx(4.06, rel=0.1)


def test_every_process_of_a_cpu_counts(smol: Path) -> None:
    """Ray: two ranks of the actor with a model each, two engines, and the controller."""
    alone, _, _ = on_cpu(smol).phases
    two, generation, _ = on_cpu(smol, "runtime.name=ray", "runtime.options.workers=2").phases
    assert two.parts["weights"] == 2 * alone.parts["weights"] and two.parts["engine"] == 2 * alone.parts["engine"]
    assert two.parts["processes"] == 5 * alone.parts["processes"]
    assert generation.parts["engine's weights"] == 2 * alone.parts["engine"]


def test_a_reference_is_a_model_more_and_generation_beside_training_keeps_its_cache(smol: Path) -> None:
    model = 4 * 134_515_008
    update, generation, checkpoint = on_cpu(smol, "actor.use_kl_loss=true", roles=("actor", "ref")).phases
    assert update.parts["ref at rest"] == generation.parts["ref at rest"] == checkpoint.parts["ref at rest"] == model
    beside, _, _ = on_cpu(smol, "trainer.max_staleness=1", "rollout.n=4").phases
    assert beside.parts["KV cache"] == 16 * 384 * 2 * 30 * 3 * 64 * 4


def test_a_phase_is_held_against_the_memory_of_the_machine_or_of_its_container() -> None:
    config = load(TrainConfig, None, ["model.path=m"])
    found = Estimate((Phase("update of the actor", {"weights": 10 * GIB}),), None, 1)

    def machine(limit: float, free: float, whose: str = "this machine") -> Machine:
        return Machine(0, main=MainMemory(limit * GIB, free * GIB, whose))

    [error] = look(found, machine(9, 9, "the control group /c"), config, "cpu")
    assert error.severity == "error" and error.problem == "main memory too small"
    assert "10.0 GiB (weights 10.0) of main memory, and the control group /c has 9.0" in error.sentence
    [nearly] = look(found, machine(10.5, 10.5), config, "cpu")
    [used] = look(found, machine(24, 8), config, "cpu")
    assert nearly.severity == used.severity == "warning"
    assert used.sentence.endswith("and this machine has 24.0, of which 8.0 are free now")
    assert not list(look(found, machine(24, 20), config, "cpu"))
    assert not list(look(found, Machine(0), config, "cpu"))  # unknown
    assert not list(look(found, machine(1, 1), config, "cuda"))  # no main memory is estimated beside a GPU
