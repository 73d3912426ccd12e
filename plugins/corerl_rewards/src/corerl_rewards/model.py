"""Reward manager ``model``: the output of a transformers model for sequence classification is the score.

Prompt and response are joined by the model's own chat template (by a newline if there is none), and batched by length.
The score is the output at the last token of a row, without padding tokens at its end.
With engine ``hf`` the model is loaded once, into this process: on a GPU that also trains the policy, it occupies its
memory for the whole run. ``vllm`` and ``sglang`` are servers with a process, an environment and GPUs of their own: they
get token ids and return the model's outputs before any activation.
"""

import functools
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from corerl.contracts.config import ModelConfig
from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.contracts.scorers import Scorer
from corerl.errors import ModelError
from corerl.models import resolve_device
from corerl_rewards.calls import failed, in_threads, late, raised, returned
from corerl_rewards.options import HttpOptions, ModelOptions
from corerl_rewards.server import classifier

Chunk = Sequence[tuple[int, list[int]]]


class ModelRewardManager:
    """Scores batches of token sequences one by one, each within ``timeout`` seconds. Scorers are not used."""

    def __init__(
        self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float, options: ModelOptions
    ) -> None:
        """
        Raises:
            ModelError: the folder has no such model, no tokenizer, or fewer outputs than ``label`` needs.
        """
        self._options = options
        self._timeout = timeout
        self._lock = threading.Lock()
        self._server = None if options.engine == "hf" else classifier(options)
        if self._server is None:
            self._tokenizer, self._model = _load(options)
            return
        self._tokenizer, self._model = _load_tokenizer(options), None
        self._poster = self._server.poster("/classify", HttpOptions())

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        """One result for each request, in their order."""
        if self._server is not None:
            self._server.started()
        results: dict[int, RewardResult] = {}
        rows: list[tuple[int, list[int]]] = []
        for row, request in enumerate(requests):
            try:
                token_ids = self._token_ids(request)
            except Exception as error:
                results[row] = raised(request.data_source, error)
                continue
            most = self._options.max_length
            if len(token_ids) > most:
                results[row] = failed("length", f"{len(token_ids)} tokens are more than max_length={most}")
            else:
                rows.append((row, token_ids))
        rows.sort(key=lambda each: len(each[1]))
        size = self._options.batch_size
        chunks: list[Chunk] = [rows[start : start + size] for start in range(0, len(rows), size)]
        scored = in_threads(chunks, self._forward, self._late, num_workers=1, timeout=self._timeout)
        for chunk, of_chunk in zip(chunks, scored, strict=True):
            results.update({row: result for (row, _), result in zip(chunk, of_chunk, strict=True)})
        return [results[row] for row in range(len(requests))]

    def close(self) -> None:
        """Release the model, and end its engine."""
        self._model = None
        if self._server is not None:
            self._poster.close()
            self._server.close()

    @functools.cached_property
    def _chats(self) -> Any:
        """Renders chats as the training of reward models does; control tokens that a response spells stay text."""
        from corerl_torch.tokenizers import HFTokenizer

        path = str(self._options.path)
        return HFTokenizer(ModelConfig(path), self._tokenizer, path, (self._tokenizer.eos_token_id,))

    def _token_ids(self, request: RewardRequest) -> list[int]:
        messages = [*map(dict, request.prompt), {"role": "assistant", "content": request.response}]
        if getattr(self._tokenizer, "chat_template", None):
            text = self._chats.render(messages, "a response", add_generation_prompt=False)
            ids: list[int] = self._chats.encode([text])[0]
        else:
            text = "\n".join(str(message["content"]) for message in messages)
            ids = self._tokenizer(text, split_special_tokens=True)["input_ids"]  # letters of control tokens stay text
        while ids and ids[-1] == self._tokenizer.pad_token_id:  # as in the training of reward models
            ids.pop()
        return ids

    def _forward(self, chunk: Chunk) -> list[RewardResult]:
        try:
            scores = self._scores([token_ids for _, token_ids in chunk])
        except Exception as error:
            return [raised("the reward model", error)] * len(chunk)
        return [returned("the reward model", score) for score in scores]

    def _scores(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """One number for each sequence."""
        outputs = self._asked(sequences) if self._server is not None else self._computed(sequences)
        values = [output[self._options.label] for output in outputs]
        if self._options.activation == "sigmoid":
            values = [0.5 + 0.5 * math.tanh(value / 2) for value in values]
        return values

    def _asked(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """The outputs of the engine, before any activation."""
        if self._options.engine == "vllm":
            body = {"model": str(self._options.path), "input": sequences, "use_activation": False}
            return [each["probs"] for each in self._poster.post(body, self._timeout)["data"]]
        return [each["embedding"] for each in self._poster.post({"input_ids": sequences}, self._timeout)]

    def _computed(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """The outputs of the model here; padding is on the right and masked.

        Classes of transformers read the score before the padding token, which a row may have, too: it is a token of no
        row, and without one each row is computed alone.
        """
        import torch

        used = set().union(*sequences)
        padding = next(each for each in range(len(used) + 1) if each not in used)
        if padding >= self._model.get_input_embeddings().num_embeddings and len(sequences) > 1:
            return [self._computed([each])[0] for each in sequences]
        longest = max(map(len, sequences))
        device = next(self._model.parameters()).device
        ids = torch.full((len(sequences), longest), padding, device=device)
        mask = torch.zeros_like(ids)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = torch.tensor(sequence)
            mask[row, : len(sequence)] = 1
        with self._lock, torch.inference_mode():
            self._model.config.get_text_config().pad_token_id = padding
            logits: list[list[float]] = self._model(input_ids=ids, attention_mask=mask).logits.float().tolist()
        return logits

    def _late(self, chunk: Chunk) -> list[RewardResult]:
        return [late("the reward model", self._timeout)] * len(chunk)


def _load(options: ModelOptions) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForSequenceClassification

    device = resolve_device(options.device, "reward.manager.device")
    half = options.dtype == "bf16" or (options.dtype == "auto" and device.startswith("cuda"))
    tokenizer = _load_tokenizer(options)
    try:
        model = AutoModelForSequenceClassification.from_pretrained(
            options.path,
            dtype=torch.bfloat16 if half else torch.float32,
            trust_remote_code=options.trust_remote_code,
        )
    except Exception as error:
        raise _no_model(options, error) from error
    if model.config.num_labels <= options.label:
        raise ModelError(
            f"reward.manager.label: {options.path} has {model.config.num_labels} outputs, no label {options.label}"
        )
    return tokenizer, model.to(device).eval()


def _load_tokenizer(options: ModelOptions) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(options.path, trust_remote_code=options.trust_remote_code)
    except Exception as error:
        raise _no_model(options, error) from error


def _no_model(options: ModelOptions, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())
    if "trust_remote_code" in reason:
        reason = "it has Python code of its own, which was not run: reward.manager.trust_remote_code=true runs it"
    return ModelError(f"reward.manager.path: {options.path} is not a model for sequence classification: {reason}")
