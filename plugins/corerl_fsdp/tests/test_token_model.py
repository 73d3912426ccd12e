import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import GraniteConfig

from corerl.contracts.config import ModelConfig
from corerl.contracts.experience import collate
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ConfigError
from corerl_fsdp.token_model import TokenModel
from corerl_testing.training_ranks import AllOutputs, rank_batch
from corerl_torch.layout import packed, padded
from corerl_torch.loading import load_model
from families import write_config

EVERYTHING = frozenset({"log_probs", "entropy", "sum_pi_squared"})


def token_model(folder, *, use_remove_padding=False, logits_chunk_size=None, **changes):
    model = ModelConfig(path=str(folder), load_format="dummy", dtype="fp32", **changes)
    spec = StrategySpec(model, "cpu", MicroBatching(max_sequences=100), temperature=0.7)
    loaded = load_model(model, "lm", device="cpu", dtype=torch.float32)
    return TokenModel(loaded, spec, use_remove_padding=use_remove_padding, logits_chunk_size=logits_chunk_size)


def outputs_and_gradient(model, batch, wanted=EVERYTHING):
    outputs = model(batch, wanted)
    model.zero_grad()
    AllOutputs()(outputs, batch).loss.backward()
    return outputs, {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("use_remove_padding", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 40, 41, 100])
def test_chunks_and_packing_change_nothing(model_dir, use_remove_padding, chunk):
    batch = rank_batch()
    whole, gradient = outputs_and_gradient(token_model(model_dir), batch)
    cut_model = token_model(model_dir, use_remove_padding=use_remove_padding, logits_chunk_size=chunk)
    cut, cut_gradient = outputs_and_gradient(cut_model, batch)
    for name in EVERYTHING:
        torch.testing.assert_close(getattr(cut, name), getattr(whole, name), rtol=1e-6, atol=1e-6)
    for name, true in gradient.items():
        assert (cut_gradient[name] - true).norm() <= 1e-5 * true.norm() + 1e-8, name


def test_what_a_model_does_to_its_logits_is_done_to_chunks(tmp_path):
    """Granite divides them."""
    GraniteConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        logits_scaling=1e-3,
        architectures=["GraniteForCausalLM"],
    ).save_pretrained(tmp_path)
    model = token_model(tmp_path, logits_chunk_size=3)
    batch = rank_batch(rows=1)
    logits = model.model(input_ids=batch.input_ids[:, :-1]).logits[0, 2:]
    assert logits.abs().max() > 10
    expected = torch.log_softmax(logits / 0.7, dim=-1).gather(1, batch.input_ids[0, 3:, None])[:, 0]
    torch.testing.assert_close(model(batch, {"log_probs"}).log_probs[0], expected, rtol=1e-6, atol=1e-6)


class LargestTensor(TorchDispatchMode):
    """Notes the most elements that any operation's result has."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        result = function(*arguments, **(named or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize(("chunk", "positions"), [(None, 60), (6, 6)])
def test_no_tensor_is_larger_than_the_logits_of_a_chunk(model_dirs, chunk, positions):
    """A vocabulary so large that the logits of a chunk are the largest tensor beside the embedding."""
    model = token_model(model_dirs["qwen2", False], logits_chunk_size=chunk)
    vocabulary = 5000
    model.model.lm_head = torch.nn.Linear(32, vocabulary, bias=False)
    model.model.lm_head.weight.requires_grad_(False)  # its gradient is as large as itself
    batch = collate([[1, 2]], [list(range(20)) * 3], [0])
    batch.loss_weights = batch.response_mask.double()
    with LargestTensor() as largest:
        AllOutputs()(model(batch, EVERYTHING), batch).loss.backward()
    weight = 32 * vocabulary
    assert largest.elements == max(positions * vocabulary, weight)


def test_packed_rows_compute_no_padding(model_dirs):
    batch = rank_batch()
    tokens = int((batch.lengths - 1).sum())
    inputs, positions, real, numbers = packed(batch)
    assert inputs["input_ids"].shape == inputs["position_ids"].shape == (1, tokens)
    assert inputs["cu_seq_lens_q"].tolist() == [0, 8, 16, 25, 33, 42, 55, 65]
    assert inputs["max_length_q"] == 13
    assert inputs["position_ids"][0, :10].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
    assert len(positions) == int(real.sum()) == 41
    assert batch.input_ids.flatten()[numbers].equal(inputs["input_ids"][0])
    assert padded(batch).inputs["input_ids"].shape == (7, 13)


def test_a_row_does_not_see_the_rows_that_it_is_packed_with(model_dir):
    model = token_model(model_dir, use_remove_padding=True)
    batch = rank_batch()
    together = model(batch, EVERYTHING).log_probs
    for row in range(len(batch)):
        alone = model(batch.select(torch.tensor([row])), EVERYTHING).log_probs[0]
        torch.testing.assert_close(together[row, : len(alone)], alone, rtol=1e-6, atol=1e-6)


def test_a_sliding_window_is_that_of_transformers(tmp_path):
    write_config(tmp_path, "qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1)
    batch = rank_batch()
    true, given = (token_model(tmp_path, use_remove_padding=packs)(batch, EVERYTHING) for packs in (False, True))
    torch.testing.assert_close(given.log_probs, true.log_probs, rtol=1e-5, atol=1e-5)


def test_an_attention_that_cannot_keep_rows_apart_is_refused(model_dirs):
    with pytest.raises(ConfigError, match=r"model.attn_implementation: eager cannot keep packed rows apart: use sdpa"):
        token_model(model_dirs["qwen2", True], use_remove_padding=True, attn_implementation="eager")


class Moments:
    """A function of logits: the mean and the square of each token's logits, and where the token is."""

    def __init__(self, chunk_size):
        self.chunk_size, self.sizes = chunk_size, []

    def __call__(self, logits, chunk):
        self.sizes.append(len(logits))
        hidden = chunk.head(torch.zeros(len(logits), 32)) if len(logits) else logits
        assert hidden.shape == logits.shape
        places = torch.stack([chunk.rows, chunk.steps], dim=1).float()
        return {"square": logits.square().mean(dim=1), "places": places}


@pytest.mark.parametrize("use_remove_padding", [False, True])
@pytest.mark.parametrize(("chunk", "own"), [(None, 100), (7, 100), (None, 4), (40, 5)])
def test_functions_of_logits_get_each_response_token_once_in_chunks(model_dir, use_remove_padding, chunk, own):
    batch, function = rank_batch(), Moments(own)
    model = token_model(model_dir, use_remove_padding=use_remove_padding, logits_chunk_size=chunk)
    outputs = model(batch, {"log_probs", "hidden_states", function})
    tokens = int(batch.response_lengths.sum())
    assert max(function.sizes) <= min(own, chunk or own) and sum(function.sizes) == tokens
    real = batch.prediction_index(1)[1]
    assert outputs.of_logits["places"][real].tolist() == real.nonzero().tolist()
    assert not outputs.of_logits["square"][~real].any()
    whole = token_model(model_dir)
    with torch.no_grad():
        logits = whole.model.lm_head(outputs.hidden_states)
    torch.testing.assert_close(outputs.of_logits["square"], logits.square().mean(dim=2) * real, rtol=1e-5, atol=1e-6)
    outputs.of_logits["square"].sum().backward()
    found = {name: each.grad for name, each in model.named_parameters()}
    logits = whole.model.lm_head(whole(batch, {"hidden_states"}).hidden_states)
    (logits.square().mean(dim=2) * real).sum().backward()
    for name, each in whole.named_parameters():
        assert (found[name] - each.grad).norm() <= 1e-5 * each.grad.norm() + 1e-7, name
