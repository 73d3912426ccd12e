"""Options of the policy loss ``distill``; they import no torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from corerl import option
from corerl.contracts.config import TrainConfig
from corerl.errors import CoreRLError
from corerl_check import Finding, Machine

Form = Literal["sampled", "top_k", "full"]
CHUNK = 1024


@dataclass(frozen=True)
class TeacherOptions:
    """One teacher: a model at ``path``, a server at ``url``, or the policy itself."""

    path: str | None = option(None, "folder or hub name of the teacher; null: the model that the run starts from")
    url: str | None = option(None, "vLLM server of the teacher, such as http://teacher:8000; not with path")
    model: str | None = option(None, "with url: name of the model there; null: the server's own")
    api_key: str | None = option(None, "with url: key of the server, as ${env:NAME}")
    tokenizer: str | None = option(None, "with url: folder or hub name of its tokenizer; null: that of the policy")
    weights: Literal["own", "policy", "ema"] = option(
        "own",
        "not with path: the policy itself, without gradient. policy: its present weights; ema: the average of its past "
        "weights (actor.strategy.ema_decay)",
    )
    data_sources: list[str] = option(help="rows of these data sources, or patterns", factory=lambda: ["*"])
    context: str | None = option(
        None,
        "text in place of the prompt's last user message, for the teacher alone; {prompt}, {ground_truth} and "
        "{extra_info[KEY]} stand for that message and the row's columns",
    )
    timeout: float = option(600.0, "with url: deadline of the responses of a mini-batch, in seconds", gt=0)
    num_workers: int = option(16, "with url: requests at a time", ge=1)

    def teaches(self, data_source: str) -> bool:
        """Whether rows of this data source have this teacher."""
        return any(fnmatchcase(data_source, pattern) for pattern in self.data_sources)


@dataclass(frozen=True)
class DistillOptions:
    """Options of ``distill``."""

    teacher: str | None = option(None, "folder or hub name of the only teacher; teachers names several, or a server")
    teachers: dict[str, TeacherOptions] = option(help="name -> teacher; the first for a row teaches it", factory=dict)
    divergence: Literal["reverse_kl", "forward_kl", "jsd"] = option(
        "reverse_kl", "reverse_kl: KL(policy || teacher); forward_kl: KL(teacher || policy); jsd: between, by beta"
    )
    beta: float = option(0.5, "of jsd: share of the teacher in the mixture", gt=0, lt=1)
    form: Form = option(
        "full",
        "full: over the vocabulary; top_k: over the teacher's most probable tokens and the rest as one; sampled: of "
        "the sampled tokens, as a policy gradient (reverse_kl alone)",
    )
    top_k: int = option(32, "of top_k: tokens of the teacher", ge=1)
    coefficient: float = option(1.0, "coefficient of the divergence", gt=0)
    use_task_reward: bool = option(False, "add the policy gradient of the task's advantages")
    chunk_size: int = option(CHUNK, "positions whose logits exist at a time, of policy and teacher", ge=1)

    @property
    def named(self) -> Mapping[str, TeacherOptions]:
        """Name -> teacher, that of ``teacher`` included."""
        return self.teachers or {"teacher": TeacherOptions(path=self.teacher)}

    def check(self, key: str, config: TrainConfig) -> None:
        """See :class:`corerl.contracts.checks.CheckedOptions`."""
        from corerl_distill.rules import check

        check(self, key, config)

    def examine(self, key: str, config: TrainConfig, machine: Machine) -> Iterable[Finding | CoreRLError]:
        """See :class:`corerl_check.Examined`."""
        from corerl_distill.examination import examine

        return examine(self, key, config)


def path_of(teacher: TeacherOptions, config: TrainConfig) -> str:
    """The folder or hub name of a teacher that is a model of its own."""
    return teacher.path or config.model.path


def role_name(name: str) -> str:
    """The role of a teacher.

    >>> role_name("math")
    'teacher-math'
    """
    return "teacher" if name == "teacher" else f"teacher-{name}"
