import pytest

from corerl.contracts.config import ModelConfig
from corerl.data.tokenizer import load_tokenizer
from corerl.errors import DataError
from corerl_agents.turns import TurnTokenizer

END, PAD = 258, 256
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]
REPLIES = [{"role": "tool", "content": "84 <calc>"}, {"role": "user", "content": "ü\n next"}]


@pytest.fixture
def tokenizer(tiny_tokenizer_dir):
    return load_tokenizer(ModelConfig(path=str(tiny_tokenizer_dir)))


def test_prompt_turns_and_what_stands_between_are_the_templates_rendering(tokenizer):
    turns = TurnTokenizer(tokenizer)
    ids = list(turns.prompt(CHAT))
    history = list(CHAT)
    for written in ("left", " <calc>1</calc>\n", ""):
        ids += [*written.encode(), END]
        ids += turns.between(history, REPLIES, ids[-1])
        history += [{"role": "assistant", "content": written}, *REPLIES]
    assert ids == list(turns.prompt(history))


@pytest.mark.parametrize("last", [ord("t"), PAD])
def test_after_a_turn_that_has_no_end_the_end_is_written(tokenizer, last):
    turns = TurnTokenizer(tokenizer)
    assert turns.between(CHAT, REPLIES, last) == (END, *turns.between(CHAT, REPLIES, END))


def test_what_the_policy_wrote_is_no_part_of_what_is_encoded(tokenizer):
    """A template that rewrites earlier turns changes nothing of what was generated."""
    tokenizer.tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    turns = TurnTokenizer(tokenizer)
    between = turns.between(CHAT, REPLIES[1:], END)
    assert bytes(id for id in between if id < 256).decode() == "\nuser\nü\n next\nassistant\n"


def test_a_template_that_refuses_the_messages_is_named(tokenizer):
    tokenizer.tokenizer.chat_template = "{{ raise_exception('no tools here') }}"
    with pytest.raises(DataError, match="no tools here"):
        TurnTokenizer(tokenizer).between(CHAT, REPLIES, END)
