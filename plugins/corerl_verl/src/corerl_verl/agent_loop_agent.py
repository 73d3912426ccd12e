"""Agent ``verl_agent_loop``: a class of verl's ``agent_loop_config_path`` plays the episodes."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from corerl.contracts.agents import AgentContext, AgentResult, Model, Task
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl_verl.options import VerlAgentLoopOptions
from corerl_verl.toolbox import KEY, Toolbox, class_of

_SAMPLING = ("temperature", "top_p", "top_k")
_ROOM = ("max_tokens", "max_new_tokens")
_IGNORED = ("logprobs", "stop", *_ROOM)


@dataclass
class TokenOutput:
    """verl's answer of an engine."""

    token_ids: list[int]
    log_probs: list[float]
    stop_reason: str = "completed"
    routed_experts: Any = None
    num_preempted: int | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)


class Server:
    """verl's ``server_manager`` of one episode: asks the policy, which records prompts and samples.

    Args:
        sampling: what the loop gets as ``sampling_params``.
    """

    def __init__(self, model: Model, sampling: Mapping[str, Any]) -> None:
        self._model, self._sampling = model, sampling

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], **more: Any
    ) -> TokenOutput:
        """Continue the tokens of a prompt.

        Raises:
            ValueError: images, or sampling that differs from the config's.
        """
        given = [name for name, value in more.items() if value and name.endswith("_data")]
        if given:
            raise ValueError(f"{given[0]} reaches no engine: CoreRL's adapter of agent loops passes tokens alone")
        for name, value in sampling_params.items():
            if name not in _IGNORED and value not in (None, [], self._sampling.get(name)):
                raise ValueError(f"sampling_params.{name}={value}: CoreRL samples an episode as the config says")
        room = next((sampling_params[name] for name in _ROOM if sampling_params.get(name)), None)
        stop = sampling_params.get("stop") or ()
        texts = (stop,) if isinstance(stop, str) else tuple(stop)
        sampled = await self._model.generate(list(prompt_ids), max_tokens=room, stop=texts)
        return TokenOutput(list(sampled.token_ids), list(sampled.log_probs))


class VerlAgentLoopAgent:
    """Makes one loop an episode, as verl does.

    Raises:
        ConfigError: the file, the class or a tool cannot be loaded.
    """

    def __init__(self, context: AgentContext, *, options: VerlAgentLoopOptions) -> None:
        self._options, self._context = options, context
        loop = _entry(options)
        self._class = class_of(str(loop["_target_"]), options.config)
        self._arguments = {name: value for name, value in loop.items() if name not in ("name", "_target_")}
        self._tools = list(Toolbox(options.tools, options.functions).tools.values())
        self._config = verl_config(context.config, options)

    async def run(self, task: Task, model: Model) -> AgentResult:
        """Play one episode."""
        rollout = self._context.config.rollout
        sampling = {name: getattr(rollout, name) for name in _SAMPLING} | {"repetition_penalty": 1.0, "logprobs": True}
        given = {
            "trainer_config": SimpleNamespace(config=self._config, chats=self._context.tokenizer),
            "server_manager": Server(model, sampling),
            "tokenizer": self._context.tokenizer.tokenizer,
            "processor": None,
            "dataset_cls": None,
            "data_config": SimpleNamespace(config=self._config.data),
            "hf_model_type": None,
            "tools": SimpleNamespace(tools=self._tools),
        }
        loop = self._class(**_accepted(self._class, given), **self._arguments)
        output = await loop.run(dict(sampling), **_row(task))
        return AgentResult(
            reward=_reward(output.reward_score, rollout.multi_turn.score_response), metrics=_metrics(output)
        )


def _reward(score: float | None, is_scored: bool) -> float:
    """The loop's score, which verl takes in place of a reward function's.

    Raises:
        ValueError: the config adds both scores, or has neither.
    """
    if (score is None) != is_scored:
        has, right = ("no", "true") if score is None else ("a", "false")
        raise ValueError(f"the loop returns {has} reward_score: rollout.multi_turn.score_response must be {right}")
    return float(score or 0.0)


def _accepted(kind: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that the class takes; older versions of verl pass fewer."""
    parameters = inspect.signature(kind).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return dict(given)
    names = {each.name for each in parameters}
    return {name: value for name, value in given.items() if name in names}


def _row(task: Task) -> dict[str, Any]:
    """The columns of a row, as verl passes them."""
    extra = dict(task.extra_info)
    return {
        "raw_prompt": [dict(message) for message in task.messages],
        "data_source": task.data_source,
        "reward_model": {"ground_truth": task.ground_truth},
        "extra_info": extra,
        "index": extra.get("index", 0),
        "tools_kwargs": extra.get("tools_kwargs") or {},
        "interaction_kwargs": extra.get("interaction_kwargs") or {},
    }


def _metrics(output: Any) -> dict[str, float]:
    metrics = output.metrics
    plain = metrics if isinstance(metrics, Mapping) else vars(metrics)
    found = {f"agent/{name}": float(value) for name, value in plain.items() if isinstance(value, int | float)}
    return found | {"agent/num_turns": float(output.num_turns)}


def _entry(options: VerlAgentLoopOptions) -> Mapping[str, Any]:
    """The entry of the file that ``loop`` selects."""
    try:
        values: Any = OmegaConf.to_container(OmegaConf.load(Path(options.config).expanduser()), resolve=True)
    except (OSError, UnicodeDecodeError, ValueError, OmegaConfBaseException) as error:
        raise ConfigError(KEY, f"cannot read {options.config}: {' '.join(str(error).split())}") from None
    loops = {str(each.get("name")): each for each in values if isinstance(each, dict)} if values else {}
    name = next(iter(loops)) if options.loop is None and len(loops) == 1 else options.loop
    if name not in loops or "_target_" not in loops[name]:
        known = ", ".join(loops) or "none"
        asked = "no loop is named for it" if name is None else f"it has no loop '{name}' with _target_"
        raise ConfigError(f"{KEY}.loop", f"must be a loop of {options.config}, which has {known}: {asked}")
    found: Mapping[str, Any] = loops[name]
    return found


def verl_config(config: TrainConfig, options: VerlAgentLoopOptions) -> Any:
    """The part of verl's config that loops read."""
    rollout, data = config.rollout, config.data
    turns = rollout.multi_turn
    multi_turn = {
        "enable": True,
        "max_assistant_turns": turns.max_assistant_turns,
        "max_user_turns": None,
        "max_parallel_calls": options.max_calls,
        "max_tool_response_length": turns.max_tool_response_length,
        "tool_response_truncate_side": "middle",
        "format": options.format,
        "tool_config_path": options.tools,
        "function_tool_path": options.functions,
        "interaction_config_path": None,
    }
    sampling = {name: getattr(rollout, name) for name in _SAMPLING}
    settings = OmegaConf.from_dotlist([])
    for name, value in options.settings.items():
        OmegaConf.update(settings, name, value)
    found = {
        "actor_rollout_ref": {
            "model": {"path": config.model.path, "trust_remote_code": config.model.trust_remote_code},
            "rollout": {
                "name": rollout.name,
                "mode": "async",
                "n": rollout.n,
                **sampling,
                "prompt_length": data.max_prompt_length,
                "response_length": data.max_response_length,
                "calculate_log_probs": True,
                "full_determinism": False,
                "multi_turn": multi_turn,
                "agent": {"default_agent_loop": options.loop, "agent_loop_config_path": options.config},
            },
        },
        "data": {**asdict(data), "mm_processor_kwargs": {}},
        "trainer": {
            "project_name": config.tracking.project_name,
            "experiment_name": config.tracking.experiment_name,
        },
    }
    return OmegaConf.merge(found, {"actor_rollout_ref": {"rollout": settings}})
