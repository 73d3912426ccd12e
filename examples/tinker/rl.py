"""Reinforcement learning on two-digit sums with the tinker SDK alone, against `corerl serve --tinker`.

Each step samples a group of answers to each problem, takes their rewards minus the mean of the group as advantages, and
updates by importance sampling. The server's address and key are TINKER_BASE_URL and TINKER_API_KEY.
"""

import argparse
import random
import re
import time

import tinker
from tinker import types

PROMPT = "<|im_start|>user\n{a} + {b} = ?<|im_end|>\n<|im_start|>assistant\n"
ANSWER = re.compile(r"#### (\d+)\s*$")
MAX_TOKENS = 8


def main() -> None:
    args = arguments()
    draw = random.Random(args.seed)
    problems = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    draw.shuffle(problems)
    test, train = problems[: args.test_problems], problems[args.test_problems :]

    service = tinker.ServiceClient()
    training = service.create_lora_training_client(base_model=args.model, rank=args.rank, seed=args.seed).result()
    tokenizer = training.get_tokenizer()
    start = time.monotonic()
    for step in range(args.steps + 1):
        sampling = training.save_weights_and_get_sampling_client().result()
        if step % args.test_every == 0 or step == args.steps:
            accuracy = evaluate(sampling, tokenizer, test)
            print(f"step {step}: accuracy {accuracy:.3f}, {time.monotonic() - start:.0f} s", flush=True)
        if step == args.steps:
            break
        problems_P = draw.sample(train, args.problems)
        data_D, reward = rollouts(sampling, tokenizer, problems_P, args.group)
        for batch_D in minibatches(data_D, args.updates):
            forward_backward = training.forward_backward(batch_D, "importance_sampling")
            optim = training.optim_step(types.AdamParams(learning_rate=args.learning_rate, beta2=0.99, eps=1e-8))
            forward_backward.result()
            optim.result()
        print(f"step {step}: reward {reward:.3f}", flush=True)
    service.close("success").result()
    if accuracy < args.at_least:
        raise SystemExit(f"accuracy {accuracy:.3f} is below {args.at_least}")


def rollouts(
    sampling: tinker.SamplingClient, tokenizer: object, problems_P: list[tuple[int, int]], group: int
) -> tuple[list[types.Datum], float]:
    """Data of a step, and the mean reward; groups whose rewards are equal teach nothing and are left out."""
    params = types.SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0)
    prompts_P = [prompt_of(tokenizer, problem) for problem in problems_P]
    futures_P = [sampling.sample(types.ModelInput.from_ints(prompt), group, params) for prompt in prompts_P]
    data_D: list[types.Datum] = []
    rewards: list[float] = []
    for problem, prompt, future in zip(problems_P, prompts_P, futures_P, strict=True):
        sequences_G = future.result().sequences
        rewards_G = [reward_of(tokenizer, problem, sequence.tokens) for sequence in sequences_G]
        mean = sum(rewards_G) / len(rewards_G)
        rewards += rewards_G
        for sequence, reward in zip(sequences_G, rewards_G, strict=True):
            if reward != mean:
                data_D.append(datum(prompt, sequence, reward - mean))
    scale = 1 / max(1, sum(len(each.loss_fn_inputs["advantages"].data) for each in data_D))
    return [scaled(each, scale) for each in data_D], sum(rewards) / len(rewards)


def datum(prompt: list[int], sequence: types.SampledSequence, advantage: float) -> types.Datum:
    """Position t of the input predicts token t + 1; the prompt has advantage 0."""
    tokens, padding = prompt + sequence.tokens, [0.0] * (len(prompt) - 1)
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "logprobs": padding + sequence.logprobs,
            "advantages": padding + [advantage] * len(sequence.tokens),
        },
    )


def scaled(each: types.Datum, scale: float) -> types.Datum:
    """The loss is a sum over tokens: this makes it a mean."""
    advantages = [value * scale for value in each.loss_fn_inputs["advantages"].data]
    return types.Datum(each.model_input, {**each.loss_fn_inputs, "advantages": advantages})


def minibatches(data_D: list[types.Datum], number: int) -> list[list[types.Datum]]:
    return [part for part in (data_D[first::number] for first in range(number)) if part]


def evaluate(sampling: tinker.SamplingClient, tokenizer: object, problems: list[tuple[int, int]]) -> float:
    """Share of right greedy answers."""
    params = types.SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0)
    futures = [
        sampling.sample(types.ModelInput.from_ints(prompt_of(tokenizer, problem)), 1, params) for problem in problems
    ]
    rewards = [
        reward_of(tokenizer, problem, future.result().sequences[0].tokens)
        for problem, future in zip(problems, futures, strict=True)
    ]
    return sum(rewards) / len(rewards)


def prompt_of(tokenizer: object, problem: tuple[int, int]) -> list[int]:
    a, b = problem
    return tokenizer.encode(PROMPT.format(a=a, b=b), add_special_tokens=False)  # type: ignore[attr-defined]


def reward_of(tokenizer: object, problem: tuple[int, int], tokens: list[int]) -> float:
    text = tokenizer.decode(tokens, skip_special_tokens=True)  # type: ignore[attr-defined]
    found = ANSWER.search(text)
    return float(found is not None and int(found[1]) == sum(problem))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="the name of the served model: its folder, as given to serve")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--problems", type=int, default=64, help="in a step")
    parser.add_argument("--group", type=int, default=16, help="answers to a problem")
    parser.add_argument("--updates", type=int, default=2, help="optimizer steps in a step")
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--test-problems", type=int, default=200)
    parser.add_argument("--test-every", type=int, default=5)
    parser.add_argument("--at-least", type=float, default=0.0, help="accuracy below which the exit code is 1")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
