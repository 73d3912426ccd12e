"""``corerl serve``."""

from collections.abc import Sequence
from pathlib import Path

import click

from corerl.cli.common import plugin_options
from corerl.plugins import load_plugins
from corerl_gateway.services import PARTS


class _Serve(click.Command):
    """The command with a flag for each installed service."""

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        params = super().get_params(context)
        taken = {name for param in params for name in param.opts}
        services = [entry for entry in getattr(load_plugins().registries, PARTS) if f"--{entry.name}" not in taken]
        flags: list[click.Parameter] = [
            click.Option([f"--{entry.name}", "service"], flag_value=entry.name, help=f"Serve {entry.summary}.")
            for entry in services
        ]
        return flags + params


@click.command(cls=_Serve)
@click.argument("model_or_config", metavar="MODEL|CHECKPOINT|CONFIG")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: a free port.")
@click.option(
    "--api-key-env",
    metavar="NAME",
    help="Variable with the key; without it 'corerl', or the key that a service prints.",
)
@plugin_options
def serve(
    model_or_config: str,
    overrides: Sequence[str],
    host: str | None,
    port: int,
    api_key_env: str | None,
    plugin: tuple[str, ...],
    disable_plugin: tuple[str, ...],
    service: str | None = None,
) -> None:
    """Serve a model for clients of OpenAI, Anthropic and vLLM, with any rollout backend, until Ctrl-C.

    Takes a model folder or hub name, a checkpoint with huggingface/, or a training config, of which model, data,
    rollout, runtime and actor.device are used. Requests set temperature, top_p, top_k, seed and max_tokens; request
    and answer have room in data.max_prompt_length + data.max_response_length tokens.
    """
    from corerl.cli.common import read_train_values
    from corerl.config import typed
    from corerl.contracts.config import TrainConfig
    from corerl_gateway.services import ServeRequest, split_options
    from corerl_gateway.serving import plan_serving, run_serving

    own, overrides = split_options(service, overrides) if service else ({}, list(overrides))
    is_config = Path(model_or_config).suffix in (".yaml", ".yml")
    file = Path(model_or_config) if is_config else None
    values, plugins = read_train_values(file, overrides, plugin, disable_plugin)
    if not is_config:
        values["model"] = {**(values.get("model") or {}), "path": model_of(model_or_config)}
    if (options := (values.get("rollout") or {}).get("options")) and options.get("load_format") == "dummy":
        del options["load_format"]  # a trainer would send the weights
    if service:
        registry = getattr(plugins.registries, PARTS)
        selected = registry.select_named(service, own, name_key=f"--{service}", options_key=service)
        selected.load()(ServeRequest(values, plugins, host, port, api_key_env))
        return
    config = typed.build(TrainConfig, values, explain_key=plugins.explain_key)
    run_serving(plan_serving(config, plugins, host, port, api_key_env))


def model_of(path: str) -> str:
    """The model folder of a checkpoint; other paths, and hub names, as they are.

    Raises:
        RequestError: a folder that is neither.
    """
    from corerl.errors import RequestError

    folder = Path(path).expanduser()
    if not folder.is_dir() or (folder / "config.json").is_file():
        return path
    inner = folder / "huggingface"
    if not (inner / "config.json").is_file():
        raise RequestError(
            f"{path} is neither a model folder nor a checkpoint with huggingface/: corerl export {path} makes one"
        )
    return str(inner)
