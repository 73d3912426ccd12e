"""Findings of ``corerl check``: tokenizers and vocabularies of teachers, memory of their columns and output layers."""

from collections.abc import Iterator
from dataclasses import replace

from corerl.contracts.config import TrainConfig
from corerl.errors import CoreRLError, RequestError
from corerl.models import resolve_device
from corerl_check import GIB, Finding, ModelSize, finding, model_size
from corerl_distill.options import DistillOptions, TeacherOptions, path_of
from corerl_distill.rules import other_tokenizer


def examine(options: DistillOptions, key: str, config: TrainConfig) -> Iterator[Finding | CoreRLError]:
    """Models that cannot be read are findings of their sizes elsewhere."""
    try:
        device = resolve_device(config.actor.device)
        own = model_size(config.model, device)
    except RequestError:
        return
    from corerl_torch.loading import image_text_config

    reads_images = image_text_config(config.model) is not None
    for name, teacher in options.named.items():
        if teacher.url is not None and reads_images:
            sentence = f"teacher '{name}' is a server, which reads text alone: the run refuses its rows with images"
            yield Finding("warning", f"{key}.teachers.{name}.url", sentence)
        try:
            yield from _tokenizers(name, teacher, options, config)
            if teacher.url is None and teacher.weights == "own":
                size = model_size(replace(config.model, path=path_of(teacher, config)), device)
                yield from _sizes(name, size, own, options, key, config)
        except RequestError as error:
            yield error
    if any(teacher.weights == "ema" for teacher in options.named.values()):
        gigabytes = f"{own.trained * 4 / GIB:.2f} GiB"
        yield Finding("note", key, f"the average of the policy's weights takes {gigabytes}, divided as the weights are")
    if options.form == "top_k" and options.top_k >= own.vocabulary:
        yield finding("warning", f"{key}.top_k", f"{options.top_k} is the whole vocabulary; form full costs less")


def _tokenizers(
    name: str, teacher: TeacherOptions, options: DistillOptions, config: TrainConfig
) -> Iterator[CoreRLError]:
    from corerl_distill.tokenizers import load_other
    from corerl_torch.tokenizers import load_tokenizer

    if options.form != "sampled" and load_other(teacher, config, load_tokenizer(config.model)) is not None:
        yield other_tokenizer(name, options)


def _sizes(
    name: str, size: ModelSize, own: ModelSize, options: DistillOptions, key: str, config: TrainConfig
) -> Iterator[Finding]:
    if options.form == "sampled":
        return
    if size.vocabulary != own.vocabulary:
        sentence = f"teacher '{name}' has {size.vocabulary} logits and the policy {own.vocabulary}"
        fewer = min(size.vocabulary, own.vocabulary)
        yield Finding("note", key, f"{sentence}: tokens from {fewer} on, which no tokenizer uses, are left out")
    tokens = config.actor.ppo_mini_batch_size * config.rollout.n * config.data.max_response_length
    numbers = size.hidden * size.bytes if options.form == "full" else options.top_k * 8
    columns = f"the values of teacher '{name}' for one mini-batch take at most {tokens * numbers / GIB:.2f} GiB of host"
    if options.form == "full":
        head = size.vocabulary * size.hidden * size.bytes / GIB
        yield Finding("note", key, f"{columns} memory, and its output layer {head:.2f} GiB beside each policy worker")
    else:
        yield Finding("note", key, f"{columns} memory")
