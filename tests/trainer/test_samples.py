import torch

from corerl.batch.rollouts import Rollouts
from corerl.config.schema import ModelConfig
from corerl.data.prompts import Prompt
from corerl.data.tokenizer import load_tokenizer
from corerl.evaluation.files import read_rows
from corerl.registry.reward_managers import RewardResult
from corerl.registry.rollout_backends import Completion
from corerl.trainer.samples import TokenColumns, token_texts, write_rollouts


def test_the_texts_of_tokens_join_to_the_text_characters_in_several_tokens_included(tiny_tokenizer_dir):
    tokenizer = load_tokenizer(ModelConfig(path=str(tiny_tokenizer_dir)))
    text = " naïve 解\n😀"  # of 1, 2, 3 and 4 bytes, a token each
    [texts] = token_texts(tokenizer, [[*text.encode(), 258]])
    assert "".join(texts) == text + "<|im_end|>"
    assert texts[:5] == [" ", "n", "a", "", "ï"]
    assert texts[7:11] == [" ", "", "", "解"]
    assert texts[-5:] == ["", "", "", "😀", "<|im_end|>"]


def test_a_character_that_is_cut_off_stays_visible(tiny_tokenizer_dir):
    tokenizer = load_tokenizer(ModelConfig(path=str(tiny_tokenizer_dir)))
    assert token_texts(tokenizer, [[97, *"解".encode()[:2]], []]) == [["a", "", "\N{REPLACEMENT CHARACTER}"], []]


def test_the_first_rows_have_their_tokens_with_log_probs_and_advantages(tiny_tokenizer_dir, tmp_path):
    tokenizer = load_tokenizer(ModelConfig(path=str(tiny_tokenizer_dir)))
    prompt = Prompt(0, (97,), [{"role": "user", "content": "a"}], "x", "4", {})
    tokens = [[98, 99, 258], [98, 258], [258]]
    completions = [Completion(ids, [-0.5] * len(ids), "stop", 0) for ids in tokens]
    rollouts = Rollouts([prompt] * 3, completions, ["bc", "b", ""], [0, 0, 0])
    experience = rollouts.experience()
    experience.old_log_probs = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, -5.0, 0.0], [-6.0, 0.0, 0.0]])
    experience.advantages = torch.tensor([[0.5] * 3, [-0.5] * 3, [0.0] * 3])
    results = [RewardResult(1.0), RewardResult(0.0), RewardResult(0.5)]
    write_rollouts(tmp_path / "a.parquet", rollouts, results, TokenColumns(experience, tokenizer, 2))
    first, second, third = (row for _, row in read_rows(str(tmp_path / "a.parquet")))
    assert first["token_ids"] == [98, 99, 258] and first["token_texts"] == ["b", "c", "<|im_end|>"]
    assert first["log_probs"] == [-1.0, -2.0, -3.0] and first["rollout_log_probs"] == [-0.5] * 3
    assert second["log_probs"] == [-4.0, -5.0] and second["advantages"] == [-0.5, -0.5]
    assert "ref_log_probs" not in first
    assert third["token_ids"] is None and third["advantages"] is None and third["score"] == 0.5
