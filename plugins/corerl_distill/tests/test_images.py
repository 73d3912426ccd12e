"""Teachers of prompts with images: the same divergence as whole logits give, and contexts that keep the images."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from teaching import Class, write_model

from corerl.batch.rollouts import Rollouts
from corerl.contracts.config import ModelConfig
from corerl.contracts.rollout_backends import Completion
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.data import load_tokenizer
from corerl.data.prompts import Prompt
from corerl.errors import DataError
from corerl_distill.contexts import Contexts, with_context
from corerl_distill.options import DistillOptions, TeacherOptions
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_torch import media_store
from corerl_torch.media import images_of
from corerl_vision.tiny_model import TinyVision, write_tiny_model
from pictures import picture
from vision_families import FAMILIES

CONTEXT = "{prompt} The answer is {ground_truth}."


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(media_store.VARIABLE, str(tmp_path_factory.mktemp("media")))
        yield


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A student, and a teacher of its family."""
    folders = []
    for seed in (0, 1):
        folder = tmp_path_factory.mktemp("models") / f"{request.param}-{seed}"
        kind = TinyVision(request.param, words=["red", "circle"], hidden_size=48, initializer_range=0.3, seed=seed)
        write_tiny_model(folder, kind)
        folders.append(folder)
    return folders[0], folders[1]


def prompts_of(tokenizer: Any, texts: list[str], truth: Any = "red") -> list[Prompt]:
    """One picture for each mark in a text."""
    prompts = []
    for number, text in enumerate(texts):
        given = {"images": [picture(10 * number + each, 40, 70) for each in range(text.count("<image>"))]}
        messages, media = tokenizer.place_media([{"role": "user", "content": text}], given, "here")
        rendered = tokenizer.render(messages, "here", add_generation_prompt=True)
        ids, columns = tokenizer.encode_media(rendered, media, "here")
        prompts.append(Prompt(number, tuple(ids), messages, "shapes", truth, {}, columns))
    return prompts


def rollouts_of(prompts: list[Prompt]) -> Rollouts:
    completions = []
    for number, prompt in enumerate(prompts):
        ids = [5 + number, 6, 7 + number]
        columns = {name: values.widened(len(ids)) for name, values in prompt.media.items()}
        completions.append(Completion(ids, [-1.0] * 3, "stop", 0, columns=columns))
    return Rollouts(prompts, completions, ["x"] * len(prompts), list(range(len(prompts))))


def distributions(path: Path, batch: Any) -> torch.Tensor:
    """(B, T, V) log-probs by the strategy's whole logits."""
    spec = StrategySpec(ModelConfig(str(path), dtype="fp32"), "cpu", MicroBatching(max_sequences=1))
    found = SingleDeviceStrategy(spec, TorchOptions()).forward(batch, ["vocabulary_log_probs"])
    assert found.vocabulary_log_probs is not None
    return found.vocabulary_log_probs.double()


def divergence(student: Path, teacher: Path, batch: Any, of_teacher: Any) -> float:
    """KL(policy || teacher), a mean over the trained tokens."""
    p, q = distributions(student, batch), distributions(teacher, of_teacher)
    kl = (p.exp() * (p - q)).sum(dim=-1)
    return float(kl[batch.response_mask].mean())


TEXTS = ["<image>red?", "no picture", "a <image> and a <image>"]


@pytest.mark.parametrize("form", ["full", "top_k"])
def test_a_teacher_that_reads_images_gives_the_divergence_of_whole_logits(pair: tuple[Path, Path], form: str) -> None:
    student, teacher = pair
    given = rollouts_of(prompts_of(load_tokenizer(ModelConfig(str(student))), TEXTS))
    options: Any = {"form": form, "top_k": 1000, "chunk_size": 2}
    taught = Class(student, DistillOptions(teacher=str(teacher), **options), prompts=given.prompts)
    batch = taught.batch(given)
    loss, gradient = taught.loss_and_gradient(batch)
    true = divergence(student, teacher, given.experience(), given.experience())
    assert loss == pytest.approx(true, rel=1e-4) and any(each.abs().max() > 0 for each in gradient.values())


def test_a_teacher_with_a_context_reads_the_images_of_the_prompt(pair: tuple[Path, Path]) -> None:
    student, teacher = pair
    tokenizer: Any = load_tokenizer(ModelConfig(str(student)))
    given = rollouts_of(prompts_of(tokenizer, TEXTS))
    teachers = {"t": TeacherOptions(path=str(teacher), context=CONTEXT)}
    taught = Class(student, DistillOptions(teachers=teachers), prompts=given.prompts)
    loss, _ = taught.loss_and_gradient(taught.batch(given))
    shown = rollouts_of(prompts_of(tokenizer, [f"{text} The answer is red." for text in TEXTS]))
    assert images_of(shown.prompts[0].media.get("images"))
    assert loss == pytest.approx(divergence(student, teacher, given.experience(), shown.experience()), rel=1e-4)


def test_images_of_later_turns_stay_behind_the_context(pair: tuple[Path, Path]) -> None:
    """A branch whose prompt goes on with a second picture behind the first answer."""
    from corerl.batch.rollouts import Row
    from corerl_distill.readers import in_context

    tokenizer: Any = load_tokenizer(ModelConfig(str(pair[0])))
    prompt, other = prompts_of(tokenizer, ["<image>red?", "<image>blue?"])
    contexts = Contexts(tokenizer, CONTEXT, {})
    both = prompt.media["images"].joined(other.media["images"]).widened(1)
    row = Row(
        0, (*prompt.token_ids, *other.token_ids), Completion([5], [0.0], "stop", 0, columns={"images": both}), None, ()
    )
    [read] = in_context(contexts, [prompt], [row])
    alone = contexts.read(prompt)
    assert read.token_ids == [*alone.token_ids, *other.token_ids]
    found = images_of(read.media["images"])
    ends = [images_of(prompt.media["images"])[0].digest, images_of(other.media["images"])[0].digest]
    assert [image.digest for image in found] == ends and len(read.media["images"]) == len(read.token_ids) + 1
    first = len(alone.token_ids) + images_of(other.media["images"])[0].start
    assert found[1].start == first


def test_a_server_and_a_model_of_text_refuse_rows_with_images_at_the_start(
    tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    prompts = prompts_of(load_tokenizer(ModelConfig(str(pair[0]))), ["no picture", "<image>red?"])
    text = write_model(tmp_path / "text")
    for place, words in (
        ({"url": "http://127.0.0.1:9"}, "a server reads text alone"),
        ({"path": str(text)}, "the model of the teacher reads text alone"),
    ):
        options = DistillOptions(teachers={"t": TeacherOptions(**place)}, form="sampled")
        with pytest.raises(DataError, match=rf"^teacher 't', row 1: .*{words}"):
            Class(pair[0], options, prompts=prompts)
    with pytest.raises(DataError, match=r"^row 1 for the teacher: has an image, and the teacher reads text alone"):
        Contexts(load_tokenizer(ModelConfig(str(text))), None, {}).check(prompts)


@pytest.mark.parametrize(
    ("truth", "words"), [(None, "ground_truth is null"), ({"hint": None}, r"extra_info\[hint\] is null")]
)
def test_a_missing_part_of_the_context_is_an_error_at_the_start(tmp_path: Path, truth: Any, words: str) -> None:
    student = write_model(tmp_path / "student")
    field = "ground_truth" if truth is None else "extra_info[hint]"
    options = DistillOptions(teachers={"t": TeacherOptions(context=f"{{prompt}} {{{field}}}")})
    prompt = Prompt(3, (1,), [{"role": "user", "content": "?"}], "sums", None, truth or {})
    with pytest.raises(DataError, match=rf"^row 3 for the teacher: .*{words}"):
        Class(student, options, prompts=[dataclasses.replace(prompt)])


def test_parts_keep_their_places_and_values_are_texts_or_json() -> None:
    image = {"type": "image", "image": "media:00"}
    chat = [{"role": "user", "content": [image, {"type": "text", "text": "red?"}]}]
    [changed] = with_context(chat, "Look: {prompt} {ground_truth}", {"ground_truth": ["rød", 2, None]})
    texts = ["Look: ", image, "red?", " ", '["rød", 2, null]']
    assert changed["content"] == [each if isinstance(each, dict) else {"type": "text", "text": each} for each in texts]
    [plain] = with_context(
        [{"role": "user", "content": "2?"}], "{prompt} {ground_truth:.1f}", {"ground_truth": np.float64(2)}
    )
    assert plain["content"] == "2? 2.0"
