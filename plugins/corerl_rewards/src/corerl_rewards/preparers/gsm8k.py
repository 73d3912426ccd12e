"""GSM8K (Cobbe et al., 2021, arXiv 2110.14168): columns ``question`` and ``answer``, which ends in ``#### N``."""

from collections.abc import Mapping
from typing import Any

from corerl_rewards.scorers.exact_numbers import is_number
from corerl_rewards.scorers.extraction import number_after
from corerl_rewards.scorers.gsm8k import MARK
from corerl_tools.prepare.contract import Dropped, PromptRow, text_of

INSTRUCTION = ' Let\'s think step by step and output the final answer after "####".'


class Gsm8k:
    """The question with a one-line instruction; the ground truth is the number, without thousands separators."""

    hub = "openai/gsm8k:main"

    def __call__(self, record: Mapping[str, Any]) -> PromptRow | Dropped:
        question, answer = text_of(record, "question"), text_of(record, "answer")
        if not question.strip():
            return Dropped("empty question")
        truth = number_after(answer, MARK)
        if truth is None or not is_number(truth):
            return Dropped(f"no number after {MARK} in the answer")
        return PromptRow(
            data_source="openai/gsm8k",
            prompt=[{"role": "user", "content": question + INSTRUCTION}],
            ability="math",
            ground_truth=truth.replace(",", "").replace("$", ""),
            extra_info={"question": question, "answer": answer},
        )
