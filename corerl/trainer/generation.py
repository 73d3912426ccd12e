"""Responses to the prompts of a file, in parts that outlive a kill: ``corerl generate``.

Prompts are generated in batches, each written beside the output file as a part once it is complete, and all parts
become the output file at the end. What a prompt gets depends on its place in the data and the seed alone, so that a run
that was killed goes on where it ended, in batches of whatever size.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from corerl.batch.rollouts import Rollouts
from corerl.config.parts import select_rollout_backend
from corerl.config.schema import TrainConfig
from corerl.data.prompts import Prompt, load_prompts
from corerl.data.tokenizer import ChatTokenizer, load_tokenizer
from corerl.errors import ConfigError
from corerl.evaluation.files import as_table
from corerl.evaluation.parts import PartedFile
from corerl.files import require_writable
from corerl.models import resolve_device
from corerl.plugins import Plugins
from corerl.registry import Selected
from corerl.registry.rollout_backends import RolloutBackendFactory, SamplingParams
from corerl.registry.runtimes import RuntimeFactory
from corerl.seeding import Seeds
from corerl.telemetry.notices import say
from corerl.telemetry.progress import GenerationProgress
from corerl.trainer.build import rollout_role
from corerl.trainer.requests import check_media, make_requests, training_sampling
from corerl.trainer.workers import RolloutWorker


@dataclasses.dataclass(frozen=True)
class GenerationPlan:
    """What is about to be generated.

    Attributes:
        request: what the responses depend on, as plain values: parts and files of another request are not mixed in.
    """

    config: TrainConfig
    backend: Selected[RolloutBackendFactory]
    runtime: Selected[RuntimeFactory]
    tokenizer: ChatTokenizer
    prompts: Sequence[Prompt]
    sampling: SamplingParams
    out: Path
    batch_size: int
    log_probs: bool
    request: Mapping[str, Any]

    def __str__(self) -> str:
        return (
            f"{len(self.prompts)} prompts × {self.sampling.n} responses from {self.config.model.path}, "
            f"by '{self.backend.entry.name}' on {resolve_device(self.config.actor.device)}"
        )


def plan_generation(
    config: TrainConfig, plugins: Plugins, out: Path, *, greedy: bool = False, batch_size: int = 256, log_probs: bool
) -> GenerationPlan:
    """Read the tokenizer and the prompts of ``data.val_files``; nothing is written.

    Args:
        out: a parquet file.
        greedy: the likeliest response to each prompt, once, whatever ``rollout`` says.
        batch_size: prompts in a part.

    Raises:
        RequestError: the output file, the model's tokenizer, the data or the rollout backend cannot be used.
    """
    if out.suffix != ".parquet":
        raise ConfigError("--out", f"must end in .parquet, not '{out.suffix}'")
    require_writable(out.parent, "--out")
    registries = plugins.registries
    backend = select_rollout_backend(config.rollout, registries)
    runtime = registries.runtimes.select_named(
        config.runtime.name, config.runtime.options, name_key="runtime.name", options_key="runtime.options"
    )
    tokenizer = load_tokenizer(config.model)
    prompts = load_prompts(config.data, config.data.val_files, tokenizer, "val")
    say(f"prompts: {prompts.report}")
    check_media(prompts, backend.entry)
    sampling = training_sampling(config, tokenizer.stop_token_ids)
    if greedy:
        sampling = dataclasses.replace(sampling, n=1, temperature=0.0, top_p=1.0, top_k=-1)
    request = {
        "model": config.model.path,
        "state of the weights": _weights_stamp(config),
        "dtype": config.model.dtype,
        "backend": backend.entry.name,
        "seed": config.trainer.seed,
        "log_probs": log_probs,
        "prompts": _digest(prompts.prompts),
        **{f"sampling.{name}": value for name, value in json.loads(json.dumps(dataclasses.asdict(sampling))).items()},
    }
    return GenerationPlan(
        config, backend, runtime, tokenizer, prompts.prompts, sampling, out, batch_size, log_probs, request
    )


def generate(plan: GenerationPlan, *, overwrite: bool = False) -> Path:
    """Generate what is missing and write the output file, whole or not at all; returns it.

    Args:
        overwrite: replace a file, and drop parts, of another request.

    Raises:
        ConfigError: such a file or such parts are there, without ``overwrite``.
        RunError: the engine failed; what was complete is kept.
    """
    total = len(plan.prompts)
    file = PartedFile(plan.out, plan.request, total, overwrite=overwrite)
    if file.is_complete():
        say(f"{plan.out} is complete already")
        return plan.out
    missing = file.missing()
    left = sum(map(len, missing))
    if left < total:
        say(f"{total - left} of {total} prompts were generated before")
    if missing:
        _generate_missing(plan, file, missing)
    file.join()
    return plan.out


def _generate_missing(plan: GenerationPlan, file: PartedFile, missing: Sequence[range]) -> None:
    config = plan.config
    seeds = Seeds(config.trainer.seed).validation_requests(len(plan.prompts))
    with closing(plan.runtime.load()(config.runtime)) as runtime:
        role = rollout_role(config, plan.backend.entry)
        runtime.reserve([role])
        rollout = runtime.spawn(role, RolloutWorker, config)
        with GenerationProgress(sum(map(len, missing))) as progress:
            for items in _batches(missing, plan.batch_size):
                part = slice(items.start, items.stop)
                prompts = plan.prompts[part]
                outputs = rollout.generate(make_requests(prompts, plan.sampling, seeds[part], f"{items.start}"))
                rollouts = Rollouts.collect(prompts, outputs, plan.tokenizer.decode)
                file.write(items, as_table(list(_rows(plan, rollouts, seeds[part]))))
                progress.advance(len(prompts), sum(len(each.token_ids) for each in rollouts.completions))


def _rows(plan: GenerationPlan, rollouts: Rollouts, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    for number, (prompt, completion, response, group) in enumerate(
        zip(rollouts.prompts, rollouts.completions, rollouts.responses, rollouts.group_ids, strict=True)
    ):
        row = {
            "data_source": prompt.data_source,
            "prompt": prompt.messages,
            "response": response,
            "ground_truth": prompt.ground_truth,
            "extra_info": dict(prompt.extra_info),
            "prompt_index": prompt.index,
            "sample": number % plan.sampling.n,
            "seed": seeds[group],
            "prompt_length": len(prompt.token_ids),
            "response_length": len(completion.token_ids),
            "max_response_length": plan.sampling.max_tokens,
            "finish_reason": completion.finish_reason,
        }
        if plan.log_probs:
            row |= {"token_ids": list(completion.token_ids), "log_probs": list(completion.log_probs)}
        yield row


def _batches(missing: Sequence[range], size: int) -> Iterator[range]:
    for rows in missing:
        for start in range(rows.start, rows.stop, size):
            yield range(start, min(start + size, rows.stop))


def _digest(prompts: Sequence[Prompt]) -> str:
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(json.dumps([prompt.data_source, prompt.token_ids, prompt.ground_truth], default=str).encode())
    return digest.hexdigest()[:16]


def _weights_stamp(config: TrainConfig) -> str:
    """Changes when the files of a local model are written again; '' for a hub name."""
    folder = Path(config.model.path).expanduser()
    if not folder.is_dir():
        return ""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".json"))
    stamps = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:16]
