"""Families of transformers beside their own forward, by the configs that transformers gives them."""

import random

import numpy as np
import pytest
import torch
import transformers

from corerl_torch.families.comparison import Compared, compare, rows, special_tokens
from corerl_torch.families.probe import probe
from corerl_torch.families.randomness import watched
from corerl_torch.layout import padded

NOISE = Compared(training="training mode draws random numbers, as for dropout")

EQUAL = ["Qwen2", "Llama", "Gemma2", "GraniteMoeHybrid", "Mamba2", "DeepseekV3", "Cohere", "Bloom", "NemotronH"]
NOISY = ["BioGpt", "OPT", "GPT2", "Bart", "Phimoe", "SeedOss", "XGLM", "OpenAIGPT"]
REFUSED = ["Bert", "Roberta", "Electra", "XLNet"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", EQUAL + NOISY)
def test_outputs_are_those_of_the_own_forward_and_noise_of_training_is_found(name: str) -> None:
    verdict = probe(getattr(transformers, f"{name}Config")(), "cpu")
    assert verdict.compared == (NOISE if name in NOISY else Compared())


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_reads_later_tokens_is_found(name: str) -> None:
    compared = probe(getattr(transformers, f"{name}Config")(), "cpu").compared
    assert compared is not None
    assert compared.rows.startswith("outputs of a row depend on later tokens or on the rows beside it (off by up to ")


def test_the_same_model_as_a_decoder_is_causal() -> None:
    assert probe(transformers.BertConfig(is_decoder=True), "cpu").compared == NOISE


def test_a_value_head_is_compared_too() -> None:
    assert probe(transformers.Qwen2Config(), "cpu", "value").compared == Compared()
    assert probe(transformers.GPT2Config(), "cpu", "value").compared == NOISE


@pytest.mark.parametrize("name", ["GraniteMoeHybrid", "Bamba", "Mamba2", "Doge", "FalconMamba", "Rwkv"])
def test_a_family_whose_packed_rows_differ_is_padded_for_one_reason(name: str) -> None:
    packed = probe(getattr(transformers, f"{name}Config")(), "cpu").packed
    assert packed.startswith("log-probs differ from those of padded rows by up to ")


@pytest.mark.parametrize("name", ["DeepseekV32", "GlmMoeDsa", "StableLm"])
def test_a_family_whose_code_fails_for_packed_rows_is_padded_for_one_reason(name: str) -> None:
    packed = probe(getattr(transformers, f"{name}Config")(), "cpu").packed
    assert packed.startswith("its code fails for them: TypeError: ")


@pytest.mark.parametrize("name", ["Musicgen", "Blt", "Zamba"])
def test_a_family_of_which_no_small_model_can_be_made_is_padded_and_not_compared(name: str) -> None:
    verdict = probe(getattr(transformers, f"{name}Config")(), "cpu")
    assert verdict.packed.startswith("no small model of the config can be computed: ") and verdict.compared is None


class Outputs:
    """(N,) numbers of rows, with errors of one kind."""

    def __init__(self, error: str) -> None:
        self.error, self.trains = error, False

    def train(self, mode: bool) -> None:
        self.trains = mode

    def __call__(self, batch, *, own: bool) -> torch.Tensor:
        inputs, positions, *_ = padded(batch)
        outputs = inputs["input_ids"].cumsum(dim=1).flatten()[positions].float()
        if self.error == "fails" and own:
            raise IndexError("no such\nplace")
        if self.error == "head fails" and not own:
            raise KeyError("logits")
        wrong = {"rows": own and len(batch) > 1, "head": not own, "training": self.trains}
        if self.error == "random":
            outputs = outputs + float(np.random.rand() < 0)
        if self.error == "rarely" and self.trains:
            outputs = outputs + float(random.random() < 0)
        return outputs + 7 * wrong.get(self.error, False)


@pytest.mark.parametrize(
    ("error", "found"),
    [
        ("", Compared()),
        ("rows", Compared(rows="outputs of a row depend on later tokens or on the rows beside it (off by 7)")),
        ("fails", Compared(rows="its own forward fails for a text (IndexError: no such)")),
        ("random", Compared(rows="it computes with random numbers in evaluation mode, too")),
        ("head", Compared(head="off by 7")),
        ("head fails", Compared(head="KeyError: 'logits'")),
        ("training", Compared(training="off by 7")),
        ("rarely", NOISE),
    ],
)
def test_each_part_that_differs_is_named(error: str, found: Compared) -> None:
    made = Outputs(error)

    def off(given: torch.Tensor, true: torch.Tensor) -> str:
        by = float((given - true).abs().max())
        return f"off by {by:.0f}" if by else ""

    assert compare(made, made.train, off, rows(64), "cpu") == found


def test_drawing_is_seen_in_every_generator_and_leaves_no_trace() -> None:
    def states() -> list[object]:
        return [random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().tolist()]

    before = states()
    for draw in (lambda: None, random.random, np.random.rand, lambda: torch.rand(())):
        with watched("cpu") as has_drawn:
            assert not has_drawn()
            draw()
            assert has_drawn() == (draw() is not None)
    assert states() == before


def test_rows_leave_out_tokens_with_a_meaning_of_their_own() -> None:
    config = transformers.Qwen2Config(pad_token_id=3, eos_token_id=[5, 7], bos_token_id=None)
    assert special_tokens(config) == {3, 5, 7}
    kept = rows(8, special_tokens(config))
    real = torch.arange(kept.input_ids.shape[1]) < kept.lengths[:, None]
    assert set(kept.input_ids[real].tolist()) == {0, 1, 2, 4, 6}
