import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from corerl.contracts.config import ModelConfig
from corerl.data.tokenizer import load_tokenizer
from corerl_testing.tiny_model import END, PAD, VOCABULARY, in_bf16, reference, response_log_probs, tiny_model

PROGRAM = (
    "import hashlib; from corerl_testing.tiny_model import tiny_model; folder = tiny_model(tied=False);"
    "print(folder, hashlib.sha256((folder / 'model.safetensors').read_bytes()).hexdigest())"
)


def test_another_process_makes_the_same_weights_and_leaves_nothing_behind() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    folder, digest = run.stdout.split()
    assert digest == hashlib.sha256((tiny_model(tied=False) / "model.safetensors").read_bytes()).hexdigest()
    assert not Path(folder).exists()


def test_the_global_random_state_is_left_as_it_was() -> None:
    before = torch.get_rng_state()
    tiny_model.cache_clear()
    tiny_model()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("tied", [True, False])
def test_the_model_is_tiny_and_its_output_layer_tied_or_not(tied: bool) -> None:
    model = reference(tiny_model(tied=tied))
    weights = model.state_dict()
    assert (weights["lm_head.weight"].data_ptr() == weights["model.embed_tokens.weight"].data_ptr()) == tied
    assert model.num_parameters() < 70_000
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}


def test_the_tokenizer_has_bytes_a_chat_template_and_an_end() -> None:
    tokenizer = load_tokenizer(ModelConfig(path=str(tiny_model())))
    assert tokenizer.encode(["Aé<|im_end|>"]) == [[65, 0xC3, 0xA9, END]]
    assert (tokenizer.tokenizer.pad_token_id, tokenizer.stop_token_ids[0]) == (PAD, END)
    assert len(tokenizer.tokenizer) == VOCABULARY


def test_response_log_probs_are_those_that_predict_each_token() -> None:
    model = reference(tiny_model())
    with torch.no_grad():
        logits = model(torch.tensor([[5, 6, 7, 8]])).logits[0]
        expected = torch.stack([(logits[1] / 0.5).log_softmax(0), (logits[2] / 0.5).log_softmax(0)])
        torch.testing.assert_close(response_log_probs(model, [5, 6], [7, 8], 0.5), expected)


def test_a_shorter_context_has_the_same_weights() -> None:
    short, usual = reference(tiny_model(context=64)), reference(tiny_model())
    assert short.config.max_position_embeddings == 64
    weights = usual.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in short.state_dict().items())


def test_errors_of_bf16_are_known_by_their_size() -> None:
    model, tokens = reference(tiny_model()), list(range(40, 60))
    index = torch.tensor(tokens)[:, None]
    with torch.no_grad():
        true = response_log_probs(model, [5], tokens).gather(1, index)[:, 0]
        rounded = reference(tiny_model()).bfloat16()
        error = response_log_probs(rounded, [5], tokens).double().gather(1, index)[:, 0] - true
    assert "fp32 was asked for" in in_bf16(model, [([5], tokens, 1.0, error)])
    assert in_bf16(model, [([5], tokens, 1.0, torch.full((20,), 0.1, dtype=torch.float64))]) == ""
    assert in_bf16(model, [([5], tokens, 1.0, 1e-3 * error)]) == ""
    assert in_bf16(model, [([5], tokens[:4], 1.0, error[:4])]) == ""
