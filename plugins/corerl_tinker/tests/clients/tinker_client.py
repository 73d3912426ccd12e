"""The unmodified SDK: every part of it that the server has. Prints RESULTS and a JSON object.

torch, which forward_backward_custom needs, is that of the folder TORCH, behind the client's own packages.
"""

import json
import os
import sys
import threading

sys.path.append(os.environ["TORCH"])

import numpy as np
import tinker
import torch
from tinker import types

MODEL = os.environ["MODEL"]
TOKENS = list(range(40, 60))
ADAM = types.AdamParams(learning_rate=1e-2)


def rl_datum(logprobs):
    return types.Datum(
        model_input=types.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={"target_tokens": TOKENS[1:], "logprobs": logprobs, "advantages": [0.5] * 10 + [-1.0] * 9},
    )


def sft_datum(start=40):
    tokens = list(range(start, start + 20))
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * 19},
    )


def custom(data, logprobs_list):
    loss = sum((logprobs**2).sum() for logprobs in logprobs_list)
    return loss, {"squares": float(loss)}


def play(service, seed, found):
    """A client's training; every number that it sees."""
    training = service.create_lora_training_client(base_model=MODEL, rank=4, seed=seed).result()
    for _ in range(3):
        forward_backward, optim = training.forward_backward([sft_datum(seed)], "cross_entropy"), None
        optim = training.optim_step(ADAM)
        found.append([forward_backward.result().metrics["loss:sum"], optim.result().metrics["grad_norm:mean"]])
    sampling = training.save_weights_and_get_sampling_client().result()
    answer = sampling.sample(types.ModelInput.from_ints(TOKENS[:3]), 1, types.SamplingParams(max_tokens=5, seed=1))
    found.append(answer.result().sequences[0].tokens)
    return training


def main():
    service = tinker.ServiceClient()
    alone, together = [[], []], [[], []]
    training, _ = (play(service, 40 + 20 * number, alone[number]) for number in range(2))
    threads = [
        threading.Thread(target=play, args=(tinker.ServiceClient(), 40 + 20 * number, together[number]))
        for number in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    old = training.forward([sft_datum()], "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
    shifted = [value - 0.1 for value in old.data]
    losses = {
        name: training.forward([rl_datum(shifted)], name, config).result().metrics["loss:sum"]
        for name, config in [
            ("importance_sampling", None),
            ("ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.05}),
            ("cispo", None),
            ("dro", {"beta": 0.5}),
        ]
    }
    squares = training.forward_backward_custom([sft_datum(), sft_datum(70)], custom)
    stepped = training.optim_step(ADAM)
    after = training.forward_backward_custom([sft_datum(), sft_datum(70)], custom)
    many = training.forward_backward([sft_datum(20 + n % 50) for n in range(1100)], "cross_entropy").result()
    state = training.save_state("state").result().path
    again = service.create_training_client_from_state_with_optimizer(state).result()
    pair = [each.forward([sft_datum()], "cross_entropy").result().metrics["loss:sum"] for each in (training, again)]
    saved = training.save_weights_for_sampler("sampler").result().path
    sampling = service.create_sampling_client(model_path=saved).result()
    prompt = types.ModelInput.from_ints(TOKENS[:5])
    target = np.full((4, 1), -1)
    target[2, 0] = TOKENS[3]
    answer = sampling.sample(
        prompt,
        2,
        types.SamplingParams(max_tokens=4),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=2,
        topk_sample_logprobs=1,
        target_prompt_logprobs=types.TensorData.from_torch_sparse(torch.tensor(target), -1),
        prompt_alt_tokens_k=2,
    ).result()
    errors = {}
    for name, call in {
        "vocabulary": lambda: training.forward(
            [types.Datum(types.ModelInput.from_ints([1]), {"target_tokens": [9999], "weights": [1.0]})], "cross_entropy"
        ).result(),
        "base model": lambda: service.create_lora_training_client(base_model="other").result(),
        "sample": lambda: sampling.sample(prompt, 1, types.SamplingParams(max_tokens=10**6)).result(),
    }.items():
        try:
            call()
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    rest = tinker.RestClient()
    capabilities = rest.get_server_capabilities().result()
    results = {
        "alone": alone,
        "together": together,
        "old": old.data,
        "losses": losses,
        "custom": [squares.result().metrics["squares"], after.result().metrics["squares"]],
        "step": stepped.result().metrics,
        "many": [many.metrics["loss:sum"], len(many.loss_fn_outputs)],
        "restored": pair,
        "paths": [state, saved],
        "prompt": answer.prompt_logprobs,
        "computed": sampling.compute_logprobs(prompt).result(),
        "top": answer.topk_prompt_logprobs,
        "target": answer.target_prompt_logprobs.tolist(),
        "drawn": answer.prompt_alt_tokens.tokens.shape,
        "sampled": [len(each.topk_logprobs) == len(each.tokens) for each in answer.sequences],
        "model": [training.get_info().model_data.model_name, capabilities.supported_models[0].model_name],
        "tokenizer": training.get_tokenizer().decode([104, 105]),
        "errors": errors,
    }
    service.close("success").result()
    print("RESULTS", json.dumps(results))


main()
