"""The probe that decides how a model's rows are laid out, and the small models that it computes."""

import pytest
import torch
import transformers

from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import ConfigError
from corerl_check import Finding, Machine
from corerl_fsdp.options import FsdpOptions, TorchOptions
from corerl_torch.context_parallel import ContextGroup, RowGroup
from corerl_torch.families import packing
from corerl_torch.families.columns import COLUMNS
from corerl_torch.families.cut import cut
from corerl_torch.families.packing import Packing
from corerl_torch.families.probe import Verdict, probe
from corerl_torch.families.table import FAMILIES, Family, unproven
from corerl_torch.sequence_parallel import SequenceGroup

PACKED = next(column for column in COLUMNS if column.key == "torch.packed")
PREFIXES = next(column for column in COLUMNS if column.key == "torch.prefixes")
SHORT_CONVOLUTION = transformers.Lfm2Config(layer_types=["conv", "full_attention"] * 8, num_hidden_layers=16)
SOFT_CAP = transformers.Gemma2Config()
TWO = RowGroup(heads=SequenceGroup(2, 0, None))
BY_CONTEXT = RowGroup(ContextGroup(2, 0, None))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
def test_the_verdict_on_a_published_size_is_that_of_the_table(family: Family) -> None:
    verdict = probe(getattr(transformers, family.config)(), "cpu")
    assert (verdict.packed == "") == (family.state(PACKED) == "proven"), verdict
    assert (verdict.shared == "") == (family.state(PREFIXES) == "proven"), verdict


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (SHORT_CONVOLUTION, "packed sequences|differ"),
        (SOFT_CAP, "no soft-capping"),
        (transformers.Llama4TextConfig(), "log-probs differ from those of padded rows by up to"),
        (transformers.Qwen3NextConfig(), "packed sequences"),
    ],
    ids=["convolution", "soft-cap", "positions in the batch", "recurrent"],
)
def test_rows_that_disturb_each_other_are_found(config: transformers.PreTrainedConfig, why: str) -> None:
    verdict = probe(config, "cpu")
    assert any(each in verdict.packed for each in why.split("|")) and verdict.shared == verdict.packed


def test_a_model_that_cannot_be_made_small_is_padded() -> None:
    verdict = probe(transformers.T5GemmaConfig(), "cpu")
    assert verdict.packed.startswith("no small model of the config can be computed: ")


@pytest.mark.parametrize("name", ["Qwen2_5_VLConfig", "Qwen3VLConfig", "Gemma3Config", "LlavaOnevisionConfig"])
def test_the_text_of_a_model_of_images_is_probed_without_its_tower(name: str) -> None:
    assert probe(getattr(transformers, name)(), "cpu") == Verdict("", "", None)


def test_a_cut_has_a_layer_of_each_kind_and_windows_shorter_than_its_rows() -> None:
    whole = transformers.Gemma3TextConfig(num_hidden_layers=12)
    small = cut(whole)
    assert small.layer_types == ["sliding_attention", "full_attention"]
    assert (small.num_hidden_layers, small.sliding_window, small.head_dim) == (2, 4, whole.head_dim)
    assert (whole.num_hidden_layers, len(whole.layer_types)) == (12, 12)
    small = cut(transformers.Gemma4TextConfig(num_kv_shared_layers=10))
    assert small.layer_types == ["sliding_attention", "full_attention"] * 2 and small.num_kv_shared_layers == 2
    small = cut(transformers.DeepseekV3Config())
    assert (small.n_routed_experts, small.n_group, small.first_k_dense_replace) == (4, 2, 1)
    assert (small.qk_rope_head_dim, small.kv_lora_rank) == (64, 512)


def test_a_cut_keeps_the_size_of_heads_that_the_width_gives() -> None:
    small = cut(transformers.Phi3Config())
    assert small.hidden_size // small.num_attention_heads == 96


@pytest.mark.parametrize(
    ("name", "layers", "width"),
    [("GPT2", "n_layer", "n_embd"), ("GPTJ", "n_layer", "n_embd"), ("Bart", "decoder_layers", "d_model")],
)
def test_a_cut_knows_the_names_of_a_family_for_layers_and_widths(name: str, layers: str, width: str) -> None:
    whole = getattr(transformers, f"{name}Config")()
    small = cut(whole)
    assert getattr(small, layers) == 2 < getattr(whole, layers) and getattr(small, width) < getattr(whole, width)
    assert small.vocab_size == 64


@pytest.mark.parametrize("name", ["GraniteMoeHybrid", "Bamba", "Mamba2"])
def test_a_cut_keeps_the_width_of_a_state(name: str) -> None:
    small = cut(getattr(transformers, f"{name}Config")())
    prefix, heads, size = ("", "num_heads", "head_dim") if name == "Mamba2" else ("mamba_", "n_heads", "d_head")
    width = getattr(small, prefix + heads) * getattr(small, prefix + size)
    assert width == getattr(small, f"{prefix}expand") * small.hidden_size


def test_a_cut_keeps_special_tokens_within_its_words() -> None:
    small = cut(transformers.Qwen2Config(pad_token_id=3, eos_token_id=[5, 100_000]))
    assert (small.pad_token_id, small.eos_token_id) == (3, [5, 63])


def model(config: transformers.PreTrainedConfig) -> transformers.PreTrainedModel:
    with torch.device("meta"):
        made: transformers.PreTrainedModel = transformers.AutoModelForCausalLM.from_config(config)
    return made


def test_rows_are_padded_with_one_line_and_never_sliced_or_shared(capsys: pytest.CaptureFixture[str]) -> None:
    packing._tell.cache_clear()
    one = model(cut(transformers.Qwen3NextConfig()))
    for _ in range(2):
        assert Packing.of(one, ModelConfig("x"), "cpu", sharing=None, share_prefixes=None) == Packing(packs=False)
    printed = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("rows of Qwen3NextForCausalLM are padded: ") for line in printed) == 1
    with pytest.raises(ConfigError, match=r"ulysses_sequence_parallel_size: 2 slices packed rows, and those of Qwen3N"):
        Packing.of(one, ModelConfig("x"), "cpu", sharing=TWO, share_prefixes=None)
    with pytest.raises(ConfigError, match=r"share_prefixes: prefixes cannot be shared by Qwen3NextForCausalLM, whose"):
        Packing.of(one, ModelConfig("x"), "cpu", sharing=None, share_prefixes=True)


def test_layers_with_a_state_are_never_sliced_even_if_their_rows_pack(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(packing, "verdict_on", lambda *_, **__: Verdict("", ""))  # as with flash-linear-attention
    one = model(cut(transformers.Qwen3NextConfig()))
    why = "must be 1: the tokens of a row cannot be divided among ranks by Qwen3NextForCausalLM, whose layers carry a"
    for sharing, name in ((TWO, "ulysses_sequence"), (BY_CONTEXT, "context")):
        with pytest.raises(ConfigError, match=rf"^actor\.strategy\.{name}_parallel_size: {why}"):
            Packing.of(one, ModelConfig("x"), "cpu", sharing=sharing, share_prefixes=None)
    assert Packing.of(one, ModelConfig("x"), "cpu", sharing=None, share_prefixes=None).packs
    error, *_ = findings(tmp_path, transformers.Qwen3NextConfig(), FsdpOptions(context_parallel_size=2))
    assert str(error) == (
        "actor.strategy.context_parallel_size: must be 1: the tokens of a row cannot be divided among ranks by "
        "'qwen3_next', which has layers of type linear_attention"
    )


def findings(tmp_path, config, options, gpus=0):
    config.save_pretrained(tmp_path)
    train = TrainConfig(ModelConfig(str(tmp_path)))
    found = list(options.examine("actor.strategy", train, Machine(gpus, planned=gpus > 0)))
    assert not list(options.examine("critic.strategy", train, Machine(0)))
    return found


def test_check_says_that_rows_pack_or_why_not(tmp_path) -> None:
    [packs, shares] = findings(tmp_path, transformers.Qwen3Config(num_hidden_layers=2), FsdpOptions())
    assert packs == Finding(
        "note",
        "actor.strategy.use_remove_padding",
        "packed rows equal padded rows, with and without shared prefixes, in two layers of 'qwen3'",
    )
    assert "a prompt is computed once" in shares.sentence
    [padded] = findings(tmp_path, transformers.Llama4TextConfig(), FsdpOptions())
    assert padded.severity == "warning"
    assert padded.sentence.startswith(
        "rows of 'llama4_text' are padded, although packing is asked for: log-probs differ"
    )
    error, _, heads = findings(tmp_path, transformers.Qwen3NextConfig(), FsdpOptions(ulysses_sequence_parallel_size=3))
    assert isinstance(error, ConfigError) and "3 slices packed rows, and those of 'qwen3_next' cannot be" in str(error)
    assert str(heads) == (
        "actor.strategy.ulysses_sequence_parallel_size: 3 does not divide the model's 16 attention heads; 1, 2, 4, 8 "
        "or 16 would; context_parallel_size needs no heads"
    )
    assert findings(tmp_path, transformers.Qwen3NextConfig(), TorchOptions()) == []  # pads anyway


def test_check_names_what_no_test_proves_of_an_unknown_family(tmp_path) -> None:
    [unknown] = findings(tmp_path, transformers.CohereConfig(num_hidden_layers=2, architectures=["x"]), TorchOptions())
    assert unknown.severity == "note"
    assert unknown.sentence == (
        "no test proves the family 'cohere' (docs/models.md); not proven under torch: packed, prefixes, a step, LoRA, "
        "export"
    )
    assert not list(unproven("qwen3", "torch"))


@pytest.mark.parametrize(
    ("config", "severity", "words"),
    [
        (transformers.BioGptConfig(num_hidden_layers=2), "note", "'biogpt' is trained in evaluation mode, at the same"),
        (transformers.MusicgenConfig(text_encoder={}, audio_encoder={}, decoder={}), "note", "in the whole model"),
    ],
)
def test_check_prints_how_a_family_is_computed(tmp_path, monkeypatch, config, severity, words) -> None:
    monkeypatch.setattr("corerl_torch.families.findings.config_of", lambda _: config)
    found = [each for each in findings(tmp_path, config, FsdpOptions()) if words in each.sentence]
    assert [each.severity for each in found] == [severity]


def test_check_refuses_a_model_that_is_not_causal(tmp_path) -> None:
    error, *_ = findings(tmp_path, transformers.BertConfig(num_hidden_layers=2), TorchOptions())
    assert isinstance(error, ConfigError)
    assert str(error).startswith("model.path: 'bert' is no causal language model that can be trained: outputs of a row")


def test_check_leaves_a_config_that_cannot_be_read_to_others(tmp_path) -> None:
    train = TrainConfig(ModelConfig(str(tmp_path)))
    assert all(isinstance(each, Finding) for each in FsdpOptions().examine("actor.strategy", train, Machine(0)))


def test_a_verdict_is_computed_once() -> None:
    config = transformers.Qwen3Config(num_hidden_layers=3)
    assert probe(config, "cpu") is probe(transformers.Qwen3Config(num_hidden_layers=3), "cpu") == Verdict("", "")
