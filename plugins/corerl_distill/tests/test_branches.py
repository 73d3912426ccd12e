"""Rows of episodes with several requests: a teacher with a context reads them behind its own prompt."""

from types import SimpleNamespace

import pytest

from corerl.batch.rollouts import Row
from corerl.contracts.rollout_backends import Completion
from corerl.errors import RunError
from corerl_distill.contexts import Read
from corerl_distill.readers import in_context

PROMPT = SimpleNamespace(token_ids=(1, 2, 3))
CONTEXTS = SimpleNamespace(read=lambda prompt: Read([9, 9], {}))


def row(*prompt_ids):
    return Row(0, prompt_ids, Completion([5], [0.0], "stop", 0), None, ())


def test_tokens_between_the_prompt_and_the_first_trained_one_follow_the_teachers_prompt():
    read = in_context(CONTEXTS, [PROMPT, PROMPT], [row(1, 2, 3), row(1, 2, 3, 7, 8)])
    assert read == [Read([9, 9], {}), Read([9, 9, 7, 8], {})]


def test_a_branch_that_does_not_begin_with_the_prompt_is_refused():
    with pytest.raises(RunError, match="does not begin with its prompt"):
        in_context(CONTEXTS, [PROMPT], [row(1, 4, 3, 7)])
