import torch

from corerl.batch.rollouts import Episode, Rollouts
from corerl.contracts.config import ModelConfig
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion
from corerl.data.prompts import Prompt
from corerl.data.tokenizer import load_tokenizer
from corerl_tools.evaluation.files import read_rows
from corerl_tools.evaluation.samples import TokenColumns, token_texts, write_rollouts


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


def test_a_token_of_a_space_and_a_sign_keeps_its_space(tiny_tokenizer_dir):
    tokenizer = load_tokenizer(ModelConfig(path=str(tiny_tokenizer_dir)))
    tokenizer.tokenizer.add_tokens([" ,"])
    # a tokenizer that removes such spaces, as all that are not BPE do, unless it is asked not to
    tokenizer.tokenizer.clean_up_tokenization_spaces = True
    tokenizer.tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output = True
    assert token_texts(tokenizer, [[97, 259, 98]]) == [["a", " ,", "b"]]


def test_a_row_has_its_prompt_its_score_its_lengths_and_its_episode(tmp_path):
    prompts = [Prompt(index, (1, 2, 3), [{"role": "user", "content": "a"}], "x", "4", {"a": 1}) for index in (0, 1)]
    completions = [Completion([98, 99], [-0.5, -0.5], "length", 7), Completion([98], [-0.5], "stop", 8)]
    chat = [{"role": "assistant", "content": "b"}]
    episodes = [Episode([True, True], chat, reward=0.25), Episode([True], [*chat, *chat], error="late")]
    rollouts = Rollouts(prompts, completions, ["bc", "b"], [0, 1], episodes)
    write_rollouts(tmp_path / "a.parquet", rollouts, [RewardResult(1.0), RewardResult(None, error="late")])
    first, second = (row for _, row in read_rows(str(tmp_path / "a.parquet")))
    facts = {"data_source": "x", "prompt": prompts[0].messages, "response": "bc", "ground_truth": "4", "group": 0}
    lengths = {"prompt_length": 3, "response_length": 2, "finish_reason": "length", "weight_version": 7}
    episode = {"episode": chat, "environment_reward": 0.25, "environment_error": None}
    expected = facts | lengths | episode | {"extra_info": {"a": 1}, "score": 1.0, "error": None}
    assert {name: first[name] for name in expected} == expected
    named = ("environment_error", "error", "finish_reason", "weight_version", "group", "episode")
    assert [second[name] for name in named] == ["late", "late", "stop", 8, 1, [*chat, *chat]]
