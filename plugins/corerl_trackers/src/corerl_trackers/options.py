"""The trackers' options; each one checks that its library is installed."""

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from corerl import option
from corerl.errors import ConfigError

if TYPE_CHECKING:
    from corerl.contracts.config import TrainConfig


@dataclass(frozen=True)
class LibraryOptions:
    """Options of a tracker that needs a library; ``library``: its module, ``remedy``: the command to install it."""

    library: ClassVar[str]
    remedy: ClassVar[str]

    def check(self, key: str, config: "TrainConfig") -> None:
        """Raise ConfigError if the library is not installed."""
        if importlib.util.find_spec(self.library) is None:
            raise ConfigError(key, f"needs the module {self.library}, which is not installed: {self.remedy}")


@dataclass(frozen=True)
class TensorboardOptions(LibraryOptions):
    library = "tensorboard"
    remedy = "pip install 'corerl-trackers[tensorboard]'"

    dir: str | None = option(None, "folder of the event files; null: tensorboard/ in the run's folder")


@dataclass(frozen=True)
class WandbOptions(LibraryOptions):
    library = "wandb"
    remedy = "pip install 'corerl-trackers[wandb]'"

    mode: Literal["online", "offline", "disabled"] | None = option(None, "null: WANDB_MODE, online if that is not set")
    entity: str | None = option(None, "user or team; null: the account that is logged in")
    group: str | None = option(None, "name under which runs are shown together")
    tags: tuple[str, ...] = option((), "labels of the run")


@dataclass(frozen=True)
class VemlpWandbOptions(LibraryOptions):
    library = "volcengine_ml_platform"
    remedy = "install the SDK of Volcano Engine's machine-learning platform, which is in no package index"


@dataclass(frozen=True)
class SwanlabOptions(LibraryOptions):
    library = "swanlab"
    remedy = "pip install 'corerl-trackers[swanlab]'"

    mode: Literal["online", "local", "offline", "disabled"] | None = option(
        None, "null: SWANLAB_MODE, online if that is not set; local needs swanlab[dashboard]"
    )
    workspace: str | None = option(None, "user or organisation; null: the account that is logged in")
    tags: tuple[str, ...] = option((), "labels of the run")


@dataclass(frozen=True)
class MlflowOptions(LibraryOptions):
    library = "mlflow"
    remedy = "pip install 'corerl-trackers[mlflow]'"

    tracking_uri: str | None = option(
        None, "server or database; null: MLFLOW_TRACKING_URI, or mlflow.db in the run's folder"
    )


@dataclass(frozen=True)
class ClearmlOptions(LibraryOptions):
    library = "clearml"
    remedy = "pip install 'corerl-trackers[clearml]'"

    offline: bool = option(False, "write a session in the run's folder, for clearml-task --import-offline-session")
    tags: tuple[str, ...] = option((), "labels of the task")


@dataclass(frozen=True)
class TrackioOptions(LibraryOptions):
    library = "trackio"
    remedy = "pip install 'corerl-trackers[trackio]'"

    space_id: str | None = option(None, "Hugging Face Space that shows the run; null: a local database (TRACKIO_DIR)")


@dataclass(frozen=True)
class PrometheusOptions(LibraryOptions):
    library = "prometheus_client"
    remedy = "pip install 'corerl-trackers[prometheus]'"

    port: int = option(9464, "port of /metrics; 0: a free one, which the run prints", ge=0, le=65535)
    address: str = option("127.0.0.1", "address of this machine to listen on; 0.0.0.0: all, without a password")

    def check(self, key: str, config: "TrainConfig") -> None:
        """Raise ConfigError if the library is not installed, or if the port cannot be had."""
        super().check(key, config)
        import socket

        try:
            with socket.create_server((self.address, self.port)):
                pass
        except OSError as error:
            raise ConfigError(
                f"{key}.port",
                f"{self.address}:{self.port} cannot be listened on ({error.strerror}): take another or 0",
            ) from None


@dataclass(frozen=True)
class OpenTelemetryOptions(LibraryOptions):
    library = "opentelemetry.exporter.otlp.proto.http"
    remedy = "pip install 'corerl-trackers[opentelemetry]'"

    endpoint: str | None = option(
        None, "URL of an OTLP collector, HTTP; null: OTEL_EXPORTER_OTLP_ENDPOINT, or http://localhost:4318"
    )
    service_name: str = option("corerl", "name of the service in traces and metrics")
    timeout: float = option(10.0, "seconds that the metrics of a step may take to be sent", gt=0)

    def check(self, key: str, config: "TrainConfig") -> None:
        """Raise ConfigError if the library is not installed, or if the endpoint is no URL."""
        try:
            super().check(key, config)
        except ModuleNotFoundError:  # of a parent package
            raise ConfigError(key, f"needs the module {self.library}, which is not installed: {self.remedy}") from None
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"{key}.endpoint", f"must be a URL such as http://localhost:4318, not {self.endpoint!r}")
