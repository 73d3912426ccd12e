"""The names registered by corerl-rewards."""

import sys
from typing import TYPE_CHECKING

from corerl import Register, hookimpl
from corerl_rewards import sources

if TYPE_CHECKING:
    from corerl.contracts.reward_managers import RewardManagerFactory
    from corerl.contracts.runs import Run
    from corerl.contracts.scorers import Scorer
    from corerl_tools.prepare.contract import DatasetPreparer


@hookimpl
def register_scorers(register: "Register[Scorer]") -> None:
    register(
        "gsm8k",
        "corerl_rewards.scorers.gsm8k:gsm8k",
        options="corerl_rewards.options:Gsm8kOptions",
        summary="1 if the number after the last #### is the ground truth",
        data_sources=("openai/gsm8k",),
    )
    register(
        "arithmetic",
        "corerl_rewards.scorers.gsm8k:gsm8k",
        options="corerl_rewards.options:Gsm8kOptions",
        summary="1 if the number after the last #### is the ground truth",
        data_sources=("corerl/arithmetic",),
    )
    register(
        "math",
        "corerl_rewards.scorers.math:math",
        options="corerl_rewards.options:MathOptions",
        summary=r"1 if the last \boxed{} equals the ground truth, as text, number or mathematics (math-verify)",
        data_sources=sources.BOXED_MATHEMATICS,
    )
    register(
        "math_verify",
        "corerl_rewards.scorers.math_verify:math_verify",
        options="corerl_rewards.options:MathVerifyOptions",
        summary="1 if the answer, boxed or not, is the ground truth as mathematics (math-verify)",
        data_sources=sources.MATHEMATICS_IN_PROSE,
    )
    register(
        "geometry3k",
        "corerl_rewards.scorers.geometry3k:geometry3k",
        options="corerl_rewards.options:Geometry3kOptions",
        summary=r"0.9 for a \boxed{} equal to the ground truth, 0.1 for <think>…</think> before it, as verl scores",
        data_sources=("hiyouga/geometry3k",),
    )
    register(
        "math_dapo",
        "corerl_rewards.scorers.math_dapo:math_dapo",
        options="corerl_rewards.options:MathDapoOptions",
        summary="1 if the last line 'Answer: …' holds the ground truth, as in DAPO and Minerva",
        data_sources=sources.ANSWER_LINE,
    )
    register(
        "countdown",
        "corerl_rewards.scorers.countdown:countdown",
        options="corerl_rewards.options:CountdownOptions",
        summary="1 if <answer>expression</answer> reaches the target with each number used once",
        data_sources=("countdown",),
    )
    register(
        "multiple_choice",
        "corerl_rewards.scorers.multiple_choice:multiple_choice",
        options="corerl_rewards.options:MultipleChoiceOptions",
        summary="1 if the response settles on the letter of the ground truth",
        data_sources=sources.MULTIPLE_CHOICE,
    )
    register(
        "exact_match",
        "corerl_rewards.scorers.exact_match:exact_match",
        options="corerl_rewards.options:ExactMatchOptions",
        summary="1 if the answer is one of the accepted texts, as SQuAD compares",
        data_sources=sources.QUESTIONS,
    )
    register(
        "fuzzy_match",
        "corerl_rewards.scorers.fuzzy_match:fuzzy_match",
        options="corerl_rewards.options:FuzzyMatchOptions",
        summary="0 to 1, the similarity of the answer to the nearest accepted text",
    )
    register(
        "format",
        "corerl_rewards.scorers.format:format",
        options="corerl_rewards.options:FormatOptions",
        summary="1 if <think>…</think><answer>…</answer> frame the response",
    )
    register(
        "length",
        "corerl_rewards.scorers.length:length",
        options="corerl_rewards.options:LengthOptions",
        summary="1 for a short response, falling to 0 at a number of characters",
    )
    register(
        "combined",
        "corerl_rewards.scorers.combined:combined",
        options="corerl_rewards.options:CombinedOptions",
        summary="weighted sum of named scorers, each logged",
    )


@hookimpl
def register_reward_managers(register: "Register[RewardManagerFactory]") -> None:
    register(
        "naive",
        "corerl_rewards.naive:NaiveRewardManager",
        summary="the scorer of each data source, in threads, with a deadline",
    )
    register(
        "parallel",
        "corerl_rewards.parallel:ParallelRewardManager",
        options="corerl_rewards.options:ParallelOptions",
        summary="as naive, in processes: nothing that a scorer does can hang or end the run",
    )
    register(
        "batch",
        "corerl_rewards.batch:BatchRewardManager",
        options="corerl_rewards.options:BatchOptions",
        summary="one call of your function for the whole batch",
        scores_alone=True,
    )
    register(
        "model",
        "corerl_rewards.model:ModelRewardManager",
        options="corerl_rewards.options:ModelOptions",
        summary="a reward model: the output of a transformers model for sequence classification",
        scores_alone=True,
    )
    register(
        "judge",
        "corerl_rewards.judge:JudgeRewardManager",
        options="corerl_rewards.options:JudgeOptions",
        summary="a language model grades: any OpenAI-compatible server, a prompt and a regular expression",
    )
    register(
        "remote",
        "corerl_rewards.remote:RemoteRewardManager",
        options="corerl_rewards.options:RemoteOptions",
        summary="your HTTP server scores; retries with back-off",
        scores_alone=True,
    )


@hookimpl(optionalhook=True)  # the kind is added by corerl-tools
def register_dataset_preparers(register: "Register[DatasetPreparer]") -> None:
    register("gsm8k", "corerl_rewards.preparers.gsm8k:Gsm8k", summary="GSM8K, grade-school mathematics")
    register(
        "math",
        "corerl_rewards.preparers.math:Math",
        options="corerl_rewards.options:MathDataOptions",
        summary="MATH and MATH-500, competition mathematics",
    )
    register("countdown", "corerl_rewards.preparers.countdown:Countdown", summary="Countdown, TinyZero's number game")
    register(
        "arithmetic",
        "corerl_rewards.preparers.arithmetic:Arithmetic",
        options="corerl_rewards.options:ArithmeticDataOptions",
        summary="generated problems such as 17 + 25: for a first offline run",
    )


@hookimpl
def run_started(run: "Run") -> None:
    """Wait for the engine of a reward manager in a pool of the runtime: it started when the runtime did."""
    if placed := sys.modules.get("corerl_rewards.placed"):  # a manager needs it
        placed.wait()
