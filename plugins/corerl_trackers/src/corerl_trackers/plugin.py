"""What corerl-trackers registers."""

from corerl import Register, hookimpl
from corerl.contracts.trackers import TrackerFactory
from corerl_trackers import options


@hookimpl
def register_trackers(register: Register[TrackerFactory]) -> None:
    register(
        "tensorboard",
        "corerl_trackers.tensorboard:TensorboardTracker",
        options=options.TensorboardOptions,
        summary="event files in the run's folder, for tensorboard --logdir",
    )
    register(
        "wandb",
        "corerl_trackers.wandb:open_wandb",
        options=options.WandbOptions,
        summary="Weights & Biases, online or offline",
    )
    register(
        "vemlp_wandb",
        "corerl_trackers.wandb:open_vemlp_wandb",
        options=options.VemlpWandbOptions,
        summary="W&B of Volcano Engine's machine-learning platform",
    )
    register(
        "swanlab",
        "corerl_trackers.swanlab:SwanlabTracker",
        options=options.SwanlabOptions,
        summary="SwanLab: its cloud, a local board, or offline",
    )
    register(
        "mlflow",
        "corerl_trackers.mlflow:MlflowTracker",
        options=options.MlflowOptions,
        summary="MLflow: a tracking server, or a database in the run's folder",
    )
    register(
        "clearml",
        "corerl_trackers.clearml:ClearmlTracker",
        options=options.ClearmlOptions,
        summary="ClearML: a server, or an offline session",
    )
    register(
        "trackio",
        "corerl_trackers.trackio:TrackioTracker",
        options=options.TrackioOptions,
        summary="Trackio: a local database with a dashboard, or a Hugging Face Space",
    )
