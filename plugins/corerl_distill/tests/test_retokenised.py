import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from teaching import Class, rollouts, write_model
from test_alignment import byte_level
from transformers import AutoModelForCausalLM, AutoTokenizer

from corerl.contracts.config import ModelConfig
from corerl.contracts.throughput import ModelShape
from corerl.errors import ConfigError
from corerl_distill.annotator import Teachers
from corerl_distill.options import DistillOptions, TeacherOptions
from corerl_testing.tiny_model import CHAT_TEMPLATE, SPECIAL_TOKENS

TEXTS = ["17 + 25 = 42", "naive 99", "a\n\nb"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The teacher has merges of bytes, and its own ids."""
    folder = tmp_path_factory.mktemp("models")
    student, teacher = write_model(folder / "student"), write_model(folder / "teacher", vocabulary=400, seed=1)
    own = byte_level([" ".join(TEXTS)] * 30, 290)
    own.add_special_tokens({"additional_special_tokens": SPECIAL_TOKENS[:2], "eos_token": SPECIAL_TOKENS[2]})
    own.chat_template = CHAT_TEMPLATE
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (teacher / file).unlink()
    own.save_pretrained(teacher)
    return {"student": student, "teacher": teacher}


def of_texts():
    """Responses with these bytes; the last one ends by the stop token."""
    given = rollouts(["sums"] * len(TEXTS))
    for row, (text, completion) in enumerate(zip(TEXTS, given.completions, strict=True)):
        ids = [*text.encode(), *([258] if row == 2 else [])]
        completion.token_ids[:] = ids
        completion.log_probs[:] = [-1.0] * len(ids)
    return given


def test_letters_of_a_control_token_are_letters_for_the_teacher(folders):
    from corerl_distill.retokenised import Retokenised
    from corerl_torch.tokenizers import load_tokenizer

    own, other = (load_tokenizer(ModelConfig(str(folders[name]))) for name in ("student", "teacher"))
    ids = Retokenised(None, own, other, None)._translated([*b"a<|im_end|>b"])
    assert not set(ids) & set(other.special_tokens.values())
    assert other.decode([ids]) == ["a<|im_end|>b"]


def test_spans_have_the_log_ratio_of_their_tokens(folders):
    """By hand: the bytes of the policy against the merged tokens of the teacher."""
    teachers = {"other": TeacherOptions(path=str(folders["teacher"]))}
    taught, given = Class(folders["student"], DistillOptions(teachers=teachers, form="sampled")), of_texts()
    batch = taught.batch(given)
    values = iter(batch.columns["teacher/other/log_probs"].values.tolist())
    tokenizer = AutoTokenizer.from_pretrained(folders["teacher"])
    model = AutoModelForCausalLM.from_pretrained(folders["teacher"]).double()
    several = 0
    for row, text in enumerate(TEXTS):
        chat = [{"role": "user", "content": f"{row}?"}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += [tokenizer.eos_token_id] if row == 2 else []
        with torch.no_grad():
            logits = model(torch.tensor([prompt_ids + ids])).logits[0, len(prompt_ids) - 1 : -1]
        read = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(ids)[:, None]).squeeze(1).tolist()
        start = 0
        for token, log_prob in zip(ids, read, strict=True):
            length = 1 if token == tokenizer.eos_token_id else len(tokenizer.decode([token]).encode())
            own = batch.old_log_probs[row, start : start + length]
            for step in range(length):
                assert next(values) == pytest.approx(float(own[step]) + log_prob - float(own.sum()), abs=1e-4)
            several += length > 1
            start += length
    assert several > 3


@pytest.mark.parametrize("stops", [None, [256, 258]])
def test_the_end_of_a_turn_is_that_of_the_teachers_template_not_its_end_of_sequence_token(folders, tmp_path, stops):
    """As of base models with a chat template: eos_token is <|endoftext|>, and turns end in <|im_end|>."""
    teacher = shutil.copytree(folders["teacher"], tmp_path / "teacher")
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.save_pretrained(teacher)
    ends = {token: tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")}
    (teacher / "generation_config.json").write_text(json.dumps({"eos_token_id": stops and list(ends.values())}))
    options = DistillOptions(teachers={"other": TeacherOptions(path=str(teacher))}, form="sampled")
    batch = Class(folders["student"], options).batch(of_texts())
    model = AutoModelForCausalLM.from_pretrained(teacher).double()
    chat = [{"role": "user", "content": "2?"}, {"role": "assistant", "content": TEXTS[2]}]
    [*before, _, _] = tokenizer(tokenizer.apply_chat_template(chat, tokenize=False), add_special_tokens=False)[
        "input_ids"
    ]
    with torch.no_grad():
        true = torch.log_softmax(model(torch.tensor([before])).logits[0, -1], dim=-1)
    found = float(batch.columns["teacher/other/log_probs"].values[-1])
    assert found == pytest.approx(float(true[ends["<|im_end|>"]]), abs=1e-4)
    assert abs(float(true[ends["<|im_end|>"]] - true[ends["<|endoftext|>"]])) > 0.01


@pytest.mark.parametrize("form", ["full", "top_k"])
def test_forms_of_tokens_are_refused_in_one_line(folders, form):
    teachers = {"other": TeacherOptions(path=str(folders["teacher"]))}
    with pytest.raises(ConfigError, match=r"teacher 'other' has another tokenizer than the policy.*use sampled"):
        Class(folders["student"], DistillOptions(teachers=teachers, form=form))


def test_agents_are_refused_in_one_line(folders):
    teachers = {"other": TeacherOptions(path=str(folders["teacher"]))}
    taught = Class(folders["student"], DistillOptions(teachers=teachers, form="sampled"))
    taught.plan.config.rollout.agent = "tools"
    with pytest.raises(ConfigError, match=r"teacher 'other' has another tokenizer .* not those of agents"):
        Teachers(taught.options, taught.plan, SimpleNamespace(shape=ModelShape(1, 1, 1), actor=None, others={}))


def test_a_response_that_ends_within_a_character_learns_up_to_it(folders):
    teachers = {"other": TeacherOptions(path=str(folders["teacher"]))}
    taught, given = Class(folders["student"], DistillOptions(teachers=teachers, form="sampled")), rollouts(["sums"])
    given.completions[0].token_ids[:] = [*b"17 ", 0xE2, 0x82]
    given.completions[0].log_probs[:] = [-1.0] * 5
    batch = taught.batch(given)
    changed = batch.columns["teacher/other/log_probs"].values != batch.old_log_probs[0]
    assert changed.tolist() == [True, True, True, False, False]
