"""``corerl generate``: responses to the prompts of a file, in parts that survive an interruption.

Prompts are generated in batches. Each complete batch is written as a part beside the output file; at the end all parts
become the output file. The responses to a prompt depend only on its position in the data and the seed, so an
interrupted run continues from its parts, with any batch size.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from corerl.batch.rollouts import Rollouts
from corerl.contracts.agents import AgentFactory
from corerl.contracts.checks import CheckedOptions
from corerl.contracts.config import TrainConfig
from corerl.contracts.rollout_backends import RolloutBackendFactory, SamplingParams
from corerl.contracts.runtimes import RuntimeFactory
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data import load_tokenizer
from corerl.data.prompts import Prompt, load_prompts
from corerl.errors import ConfigError
from corerl.files import require_writable
from corerl.models import resolve_device
from corerl.plugins import Plugins
from corerl.registry import Selected
from corerl.registry.parts import ENVIRONMENT, select_agent, select_others, select_rollout_backend
from corerl.rollout.episode_workers import EpisodeWorker, WorkerEpisodes, episode_role
from corerl.rollout.episodes import Episodes, make_episodes
from corerl.rollout.event_loop import EventLoop
from corerl.rollout.player import Player
from corerl.rollout.request_queue import RequestQueue
from corerl.rollout.requests import check_media, greedy_sampling, training_sampling
from corerl.rollout.scoring import add_agent
from corerl.rollout.worker import RolloutWorker
from corerl.seeding import Seeds
from corerl.terminal import say
from corerl.trainer.build import rollout_role
from corerl_check import ServedOptions
from corerl_check.requirements import require_engine
from corerl_tools.episodes.columns import episode_columns
from corerl_tools.evaluation.files import as_table, result_columns
from corerl_tools.generate.parts import PartedFile
from corerl_tools.generate.progress import GenerationProgress


@dataclasses.dataclass(frozen=True)
class GenerationPlan:
    """The plan of a generation.

    Attributes:
        request: plain values that determine the responses; parts and files of another request are not reused.
    """

    config: TrainConfig
    plugins: Plugins
    backend: Selected[RolloutBackendFactory]
    runtime: Selected[RuntimeFactory]
    agent: Selected[AgentFactory] | None
    others: Mapping[str, Selected[Any]]
    tokenizer: ChatTokenizer
    prompts: Sequence[Prompt]
    sampling: SamplingParams
    out: Path
    batch_size: int
    log_probs: bool
    request: Mapping[str, Any]

    def __str__(self) -> str:
        player = self.others.get(ENVIRONMENT) or self.agent
        played = "" if player is None else f", in turns with '{player.entry.name}'"
        return (
            f"{len(self.prompts)} prompts × {self.sampling.n} responses from {self.config.model.path}, "
            f"by '{self.backend.entry.name}' on {resolve_device(self.config.actor.device)}{played}"
        )


def plan_generation(
    config: TrainConfig, plugins: Plugins, out: Path, *, greedy: bool = False, batch_size: int = 256, log_probs: bool
) -> GenerationPlan:
    """Read the tokenizer and the prompts of ``data.val_files``; nothing is written.

    Args:
        out: a parquet file.
        greedy: one greedy response to each prompt; overrides the sampling of ``rollout``.
        batch_size: prompts in a part.

    Raises:
        RequestError: the output file, tokenizer, data or rollout backend cannot be used.
    """
    if out.suffix != ".parquet":
        raise ConfigError("--out", f"must end in .parquet, not '{out.suffix}'")
    require_writable(out.parent, "--out")
    registries = plugins.registries
    backend = select_rollout_backend(config.rollout, registries)
    runtime = registries.runtimes.select_named(
        config.runtime.name, config.runtime.options, name_key="runtime.name", options_key="runtime.options"
    )
    require_engine(config, backend, runtime)
    agent, others = select_agent(config, registries), select_others(config, registries)
    for key, part in {**others, **({} if agent is None else {"rollout.agent": agent})}.items():
        if isinstance(part.options, CheckedOptions):
            part.options.check(key, config)
    tokenizer = load_tokenizer(config.model, plugins)
    if fault := tokenizer.end_of_turn_fault():
        say(fault)
    prompts = load_prompts(config.data, config.data.val_files, tokenizer, "val")
    say(f"prompts: {prompts.report}")
    check_media(prompts, backend.entry)
    sampling = training_sampling(config, tokenizer.stop_token_ids)
    if greedy:
        sampling = greedy_sampling(sampling)
    request = {
        "model": config.model.path,
        **({"override_config": config.model.override_config} if config.model.override_config else {}),
        "state of the weights": _weights_stamp(config),
        "dtype": config.model.dtype,
        "backend": backend.entry.name,
        **({"server": backend.options.served_by} if isinstance(backend.options, ServedOptions) else {}),
        "seed": config.trainer.seed,
        "log_probs": log_probs,
        "prompts": _digest(prompts.prompts),
        **_plain("sampling", sampling),
        **({} if agent is None else {"agent": config.rollout.agent, **_plain("multi_turn", config.rollout.multi_turn)}),
    }
    return GenerationPlan(
        config,
        plugins,
        backend,
        runtime,
        agent,
        others,
        tokenizer,
        prompts.prompts,
        sampling,
        out,
        batch_size,
        log_probs,
        request,
    )


def generate(plan: GenerationPlan, *, overwrite: bool = False) -> Path:
    """Generate the missing parts and write the output file atomically; returns its path.

    Args:
        overwrite: replace a file, and drop parts, of another request.

    Raises:
        ConfigError: such a file or such parts exist, and ``overwrite`` is false.
        RunError: the engine failed; complete parts are kept.
    """
    total = len(plan.prompts)
    file = PartedFile(plan.out, plan.request, total, overwrite=overwrite)
    if file.is_complete():
        say(f"{plan.out} is already complete")
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
    with ExitStack() as stack:
        runtime = stack.enter_context(closing(plan.runtime.load()(config.runtime)))
        role = rollout_role(config, plan.backend.entry)
        players = None if plan.agent is None else episode_role(config, plan.agent)
        runtime.reserve([role, *filter(None, [players])])
        rollout = runtime.spawn(role, RolloutWorker, _of_batches(config, plan.batch_size, plan.sampling.n))
        queue = RequestQueue(rollout.generate)
        episodes: Episodes | None
        if players is not None:
            episodes = WorkerEpisodes(runtime.spawn(players, EpisodeWorker, config), queue, config.rollout.max_restarts)
        else:
            hook = plan.plugins.hook
            episodes = make_episodes(plan.agent, plan.others, config, plan.tokenizer, queue, hook)
        player = Player(queue, plan.tokenizer, None, plan.sampling.max_tokens, episodes)
        stack.callback(player.close)
        loop = EventLoop(background=False)
        stack.callback(loop.close)
        progress = stack.enter_context(GenerationProgress(sum(map(len, missing))))
        for items in _batches(missing, plan.batch_size):
            part = slice(items.start, items.stop)
            played = player.play_all(plan.prompts[part], seeds[part], plan.sampling, f"{part.start}")
            rollouts = loop.run(played).rollouts
            file.write(items, as_table(list(_rows(plan, rollouts, seeds[part]))))
            progress.advance(len(items), sum(len(each.token_ids) for each in rollouts.completions))


def _of_batches(config: TrainConfig, prompts: int, n: int) -> TrainConfig:
    """The config of the engine, for batches of so many prompts."""
    data, rollout = dataclasses.replace(config.data, train_batch_size=prompts), dataclasses.replace(config.rollout, n=n)
    return dataclasses.replace(config, data=data, rollout=rollout)


def _rows(plan: GenerationPlan, rollouts: Rollouts, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    scored = rollouts.episodes is not None and not plan.config.rollout.multi_turn.score_response
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
        episode = None if rollouts.episodes is None else rollouts.episodes[number]
        if episode is not None:
            row |= episode_columns(episode)
        if episode is not None and scored:
            row |= result_columns(add_agent(None, [episode])[0])
        if plan.log_probs:
            row |= {"token_ids": list(completion.token_ids), "log_probs": list(completion.log_probs)}
            if episode is not None:
                row["response_mask"] = episode.response_mask
        yield row


def _plain(section: str, values: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON values."""
    fields = json.loads(json.dumps(dataclasses.asdict(values)))
    return {f"{section}.{name}": value for name, value in fields.items()}


def _batches(missing: Sequence[range], size: int) -> Iterator[range]:
    for rows in missing:
        for start in range(rows.start, rows.stop, size):
            yield range(start, min(start + size, rows.stop))


def _digest(prompts: Sequence[Prompt]) -> str:
    digest = hashlib.sha256()
    for prompt in prompts:
        parts = [prompt.data_source, prompt.token_ids, prompt.ground_truth, *filter(None, [prompt.media])]
        digest.update(json.dumps(parts, default=str).encode())
    return digest.hexdigest()[:16]


def _weights_stamp(config: TrainConfig) -> str:
    """A stamp that changes if the files of a local model are written again; '' for a hub name."""
    folder = Path(config.model.path).expanduser()
    if not folder.is_dir():
        return ""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".json"))
    stamps = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:16]
