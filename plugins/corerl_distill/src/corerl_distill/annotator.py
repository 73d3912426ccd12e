"""Before each update the teachers read the mini-batch: each its rows, with the prompts that it is given."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.experience import Experience, collate
from corerl.contracts.losses import Mean
from corerl.contracts.token_columns import TokenColumn
from corerl.contracts.token_outputs import TokenOutputs, Wanted
from corerl.errors import DataError, RunError
from corerl_distill.columns import column, column_name
from corerl_distill.contexts import Contexts
from corerl_distill.endpoint import TEXT_ALONE, Endpoint, Server
from corerl_distill.of_logits import TopK
from corerl_distill.options import DistillOptions, TeacherOptions, path_of, role_name
from corerl_distill.readers import Reader, Reading, in_context, responses_of
from corerl_distill.retokenised import ModelScorer, Retokenised
from corerl_distill.rules import other_tokenizer, other_tokenizer_of_turns
from corerl_distill.tokenizers import load_other
from corerl_torch.loading import image_text_config


class Teachers:
    """See :class:`corerl.contracts.annotators.Annotator`.

    Args:
        plan, models: of the run (:class:`corerl.trainer.plan.Plan`, :class:`corerl.trainer.models.Models`).
    """

    part = "teacher"

    def __init__(self, options: DistillOptions, plan: Any, models: Any) -> None:
        self._teachers = options.named
        taught = self._by_teacher([prompt.data_source for prompt in plan.train_prompts])
        self._readers = {
            name: _reader(
                name, each, options, plan, models, [plan.train_prompts[place] for place in taught.get(name, ())]
            )
            for name, each in self._teachers.items()
        }
        self._rollouts: Any = None
        self._rows: list[Any] = []

    def annotate(self, mini_batch: Experience, rows: Tensor, rollouts: Any) -> Mapping[str, Mean]:
        if rollouts is not self._rollouts:
            self._rollouts, self._rows = rollouts, rollouts.rows()
        own = [self._rows[row] for row in rows.tolist()]
        prompts = [rollouts.prompts[row.episode] for row in own]
        taught = self._by_teacher([prompt.data_source for prompt in prompts])
        for name, places in taught.items():
            chosen = torch.tensor(places)
            reading = self._readers[name](
                mini_batch.select(chosen), [prompts[place] for place in places], [own[place] for place in places]
            )
            _put(mini_batch, name, chosen, reading)
        return {}

    def _by_teacher(self, data_sources: Sequence[str]) -> dict[str, list[int]]:
        """Teacher -> its rows."""
        found: dict[str, list[int]] = {}
        for row, source in enumerate(data_sources):
            name = next((name for name, each in self._teachers.items() if each.teaches(source)), None)
            if name is None:
                raise RunError(
                    f"no teacher of actor.policy_loss.teachers has a pattern for data source '{source}': a last one "
                    "with data_sources: ['*'] teaches the rest"
                )
            found.setdefault(name, []).append(row)
        return found


def _put(batch: Experience, teacher: str, rows: Tensor, reading: Reading) -> None:
    for values, found in reading.columns.items():
        if found.is_floating_point() and found.isnan().any():
            raise RunError(f"teacher '{teacher}' gave a NaN: its weights or its dtype (model.dtype) are at fault")
        batch.columns[column_name(teacher, values)] = column(batch, rows, reading.mask, found)


def _reader(
    name: str, teacher: TeacherOptions, options: DistillOptions, plan: Any, models: Any, prompts: Sequence[Any]
) -> Reader:
    """The reader of one teacher.

    Args:
        prompts: of the training data, which it teaches.

    Raises:
        ConfigError: its tokenizer differs from the policy's, and the form compares tokens.
        DataError: a prompt lacks a part of its context, or has images, and the teacher reads text alone.
    """
    _check_images(name, teacher, plan.config, prompts)
    template_kwargs, vocabulary = plan.config.data.apply_chat_template_kwargs, models.shape.vocabulary
    server = Server(name, teacher) if teacher.url is not None else None
    of_policy = {"policy": models.actor, "ema": AveragedPolicy(models.actor)}
    model = of_policy.get(teacher.weights) or models.others.get(role_name(name))
    other = load_other(teacher, plan.config, plan.tokenizer)
    if other is not None:
        if options.form != "sampled":
            raise other_tokenizer(name, options)
        if plan.config.rollout.agent is not None or plan.config.rollout.multi_turn.environment is not None:
            raise other_tokenizer_of_turns(name)
        contexts = Contexts(other, teacher.context, template_kwargs)
        contexts.check(prompts)
        return Retokenised(server or ModelScorer(model), plan.tokenizer, other, contexts)
    own = Contexts(plan.tokenizer, teacher.context, template_kwargs) if teacher.context else None
    if own is not None:
        own.check(prompts)
    if server is not None:
        return Endpoint(server, options, vocabulary, own)
    return ModelReader(model, options, plan.config.rollout.temperature, vocabulary, own)


def _check_images(name: str, teacher: TeacherOptions, config: Any, prompts: Sequence[Any]) -> None:
    seen = next((prompt for prompt in prompts if prompt.media), None)
    if seen is None or teacher.weights != "own":
        return
    if teacher.url is not None:
        raise DataError(f"teacher '{name}', row {seen.index}: {TEXT_ALONE}")
    if image_text_config(replace(config.model, path=path_of(teacher, config))) is None:
        raise DataError(
            f"teacher '{name}', row {seen.index}: has an image, and the model of the teacher reads text alone"
        )


@dataclass(frozen=True)
class AveragedPolicy:
    """The average of the policy's weights, on the policy's workers.

    Attributes:
        actor: workers (:class:`corerl.trainer.workers.PolicyWorker`).
    """

    actor: Any

    def forward(self, batch: Experience, wanted: Collection[Wanted]) -> TokenOutputs:
        outputs: TokenOutputs = self.actor.forward_averaged(batch, wanted)
        return outputs


class ModelReader:
    """A teacher that is a model, with the tokenizer of the policy.

    Args:
        model: workers (:class:`corerl.trainer.workers.ModelWorker`).
        vocabulary: of the policy.
        contexts: the teacher's own prompts; None: those of the policy.
    """

    def __init__(
        self, model: Any, options: DistillOptions, temperature: float, vocabulary: int, contexts: Contexts | None
    ) -> None:
        self._model, self._contexts = model, contexts
        wanted: dict[str, Wanted] = {
            "sampled": "log_probs",
            "full": "hidden_states",
            "top_k": TopK(options.top_k, temperature, vocabulary, options.chunk_size),
        }
        self._form, self._wanted = options.form, wanted[options.form]

    def __call__(self, batch: Experience, prompts: Sequence[Any], rows: Sequence[Any]) -> Reading:
        mask = batch.response_mask
        given = batch.tokens() if self._contexts is None else self._in_context(batch, prompts, rows)
        outputs = self._model.forward(given, [self._wanted])
        if self._form == "sampled":
            return Reading(mask, {"log_probs": outputs.log_probs[mask]})
        if self._form == "full":
            return Reading(mask, {"values": outputs.hidden_states[mask]})
        found = outputs.of_logits
        return Reading(mask, {"values": found["log_probs"][mask], "top": found["top"][mask].to(torch.int32)})

    def _in_context(self, batch: Experience, prompts: Sequence[Any], rows: Sequence[Any]) -> Experience:
        """The rows with the prompts of the teacher."""
        assert self._contexts is not None
        own = in_context(self._contexts, prompts, rows)
        given = collate([each.token_ids for each in own], responses_of(batch), batch.group_ids.tolist())
        for name in {name for each in own for name in each.media}:
            given.columns[name] = TokenColumn.collate([each.media.get(name) for each in own], given.lengths.tolist())
        return given
