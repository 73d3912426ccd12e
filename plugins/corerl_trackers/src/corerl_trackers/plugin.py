"""The names registered by corerl-trackers."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.trackers import TrackerFactory


@hookimpl
def register_trackers(register: "Register[TrackerFactory]") -> None:
    register(
        "tensorboard",
        "corerl_trackers.tensorboard:TensorboardTracker",
        options="corerl_trackers.options:TensorboardOptions",
        summary="event files in the run's folder, for tensorboard --logdir",
    )
    register(
        "wandb",
        "corerl_trackers.wandb:open_wandb",
        options="corerl_trackers.options:WandbOptions",
        summary="Weights & Biases, online or offline",
    )
    register(
        "vemlp_wandb",
        "corerl_trackers.wandb:open_vemlp_wandb",
        options="corerl_trackers.options:VemlpWandbOptions",
        summary="W&B of Volcano Engine's machine-learning platform",
    )
    register(
        "swanlab",
        "corerl_trackers.swanlab:SwanlabTracker",
        options="corerl_trackers.options:SwanlabOptions",
        summary="SwanLab: its cloud, a local board, or offline",
    )
    register(
        "mlflow",
        "corerl_trackers.mlflow:MlflowTracker",
        options="corerl_trackers.options:MlflowOptions",
        summary="MLflow: a tracking server, or a database in the run's folder",
    )
    register(
        "clearml",
        "corerl_trackers.clearml:ClearmlTracker",
        options="corerl_trackers.options:ClearmlOptions",
        summary="ClearML: a server, or an offline session",
    )
    register(
        "trackio",
        "corerl_trackers.trackio:TrackioTracker",
        options="corerl_trackers.options:TrackioOptions",
        summary="Trackio: a local database with a dashboard, or a Hugging Face Space",
    )
    register(
        "prometheus",
        "corerl_trackers.prometheus:PrometheusTracker",
        options="corerl_trackers.options:PrometheusOptions",
        summary="Prometheus: gauges on an HTTP port of the run",
    )
    register(
        "opentelemetry",
        "corerl_trackers.opentelemetry:OpenTelemetryTracker",
        options="corerl_trackers.options:OpenTelemetryOptions",
        summary="OpenTelemetry: metrics and spans of steps to an OTLP collector",
    )
