"""Write docs/gallery.md: what every command prints, by running all of them on small data in a temporary folder.

Times, rates, sizes and places of the machine become ``…``. It takes about a minute of a processor::

    python -m scripts.pages.gallery
"""

import os
import re
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from corerl.cli.main import INTERRUPTED, run
from scripts.known_names import ROOT
from scripts.pages.reference import plugins

PAGE = ROOT / "docs" / "gallery.md"
DEADLINE = 900
"""seconds of one command"""
ENVIRONMENT = {"COLUMNS": "118", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
LINES = 40
"""of an output that are shown; of a longer one the middle is left out"""


class Shown(NamedTuple):
    """A section: the command as ``corerl --help`` names it, or a title; a sentence; the lines that are typed."""

    title: str
    words: str
    lines: Sequence[str]
    most: int = LINES
    """printed lines that are shown"""
    ready: str = ""
    """the first line is a server: the others run when it prints this; then it gets Ctrl-C"""
    codes: Sequence[int] = (0, INTERRUPTED)
    """exit codes that are right"""


FILES = {
    "train.yaml": """\
model: {path: model}
data:
  train_files: [sums/train.parquet]
  val_files: [sums/test.parquet]
  train_batch_size: 16
  max_prompt_length: 32
  max_response_length: 8
actor: {device: cpu, ppo_mini_batch_size: 16, optim: {lr: 4e-4}}
rollout: {n: 8}
trainer: {total_training_steps: 4, test_freq: 4, save_freq: 4, log_rollouts_freq: 1}
tracking: {experiment_name: sums}
""",
    "sft.yaml": """\
model: {path: model}
output: cold-start
data: {train_files: [sums/sft.parquet], train_batch_size: 64, max_length: 64}
optim: {lr: 8e-3, lr_scheduler_type: linear, min_lr_ratio: 0.1}
trainer: {device: cpu, total_training_steps: 80}
""",
    "pairs.jsonl": "".join(
        f'{{"prompt": "{a} + {b} = ?", "chosen": "#### {a + b}", "rejected": "#### {a + b + 1}"}}\n'
        for a in range(1, 9)
        for b in range(1, 9)
    ),
    "dpo.yaml": """\
model: {path: cold-start}
output: dpo
data: {train_files: [pairs.jsonl], train_batch_size: 16, max_length: 64}
optim: {lr: 1e-3}
trainer: {device: cpu, total_epochs: 1}
""",
    "reward_model.yaml": """\
model: {path: cold-start}
output: reward-model
data: {train_files: [pairs.jsonl], train_batch_size: 16, max_length: 64}
optim: {lr: 1e-3}
trainer: {device: cpu, total_epochs: 1}
""",
    "wrong.yaml": """\
model: {path: model}
data: {train_files: [sums/train.parquet]}
actor: {optim: {learning_rate: 1.0e-5}}
""",
    "my_reward.py": """\
def score(response, ground_truth, data_source, extra_info):
    return float(response.strip().endswith(str(ground_truth)))
""",
}
"""of the folder in which the commands run"""

SIZES = "--max-operand 30 --operations + --train-size 300 --test-size 20 --sft-size 600"
SHAPE = (
    "--corpus sums/sft.parquet --vocab-size 290 --hidden-size 64 --layers 2 --rope-theta 10 --initializer-range 0.05"
)
ASK = (
    "curl -s http://127.0.0.1:8000/v1/chat/completions -H 'Authorization: Bearer corerl' "
    '-H \'Content-Type: application/json\' -d \'{"model": "policy", "temperature": 0, "max_tokens": 8, '
    '"messages": [{"role": "user", "content": "2 + 2 = ?"}]}\''
)

SECTIONS = (
    Shown(
        "corerl prepare", "Writes data of sums, without a network.", [f"corerl prepare arithmetic --out sums {SIZES}"]
    ),
    Shown(
        "corerl tiny-model",
        "Writes a random model.",
        [f"corerl tiny-model --out model --corpus sums/sft.parquet {SHAPE}"],
    ),
    Shown("corerl data inspect", "Prints contents and defects of data.", ["corerl data inspect sums/train.parquet"]),
    Shown("corerl check", "Finds errors of a training before the start.", ["corerl check train.yaml"]),
    Shown("corerl sft", "Fine-tunes a model on chats.", ["corerl sft sft.yaml"], 20),
    Shown(
        "corerl train",
        "Trains by reinforcement learning. A terminal has a [live view](looking.md#live-view) in place of the lines. "
        "Four steps are too few to learn: the [quickstart](quickstart.md) takes more.",
        ["corerl train train.yaml model.path=cold-start"],
    ),
    Shown("corerl runs", "Lists runs.", ["corerl runs"]),
    Shown("corerl report", "Writes one HTML page of runs.", ["corerl report runs/sums/*"]),
    Shown("corerl rollouts show", "Prints sample rollouts.", ["corerl rollouts show runs/sums/* --most 2"]),
    Shown(
        "corerl export",
        "Converts a checkpoint to a Hugging Face model folder.",
        ["corerl export runs/sums/* exported", "ls exported"],
    ),
    Shown(
        "corerl generate",
        "Samples responses to prompts.",
        ["corerl generate train.yaml model.path=exported --n 4 --out responses.parquet"],
    ),
    Shown("corerl eval", "Prints the share of correct responses.", ["corerl eval responses.parquet"]),
    Shown(
        "corerl score",
        "Scores responses again, here with a function in a file.",
        ["corerl score responses.parquet --scorer ./my_reward.py:score"],
    ),
    Shown("corerl dpo", "Trains on preferred and rejected responses.", ["corerl dpo dpo.yaml"]),
    Shown("corerl reward-model", "Trains a reward model.", ["corerl reward-model reward_model.yaml"]),
    Shown(
        "corerl serve",
        "Serves a model for HTTP clients. The second command runs in another terminal; then Ctrl-C.",
        ["corerl serve exported", ASK],
        ready="http://",
    ),
    Shown("corerl tiny-vision-model", "Writes a model that reads images.", ["corerl tiny-vision-model --out eyes"]),
    Shown("corerl plugins list", "Lists plugins and registered names.", ["corerl plugins list"], 60),
    Shown("corerl plugins show", "Shows everything about a name.", ["corerl plugins show grpo"]),
    Shown("corerl plugins trace", "Shows the hooks of plugins, in order.", ["corerl plugins trace"], 20),
    Shown("corerl plugins check", "Checks a part against the contract of its kind.", ["corerl plugins check grpo"]),
    Shown(
        "corerl new",
        "Starts a plugin from a template.",
        ["corerl new plugin my-loss", "find my-loss -type f | sort"],
    ),
    Shown("corerl config show", "Prints a configuration with the help of each key.", ["corerl config show train.yaml"]),
    Shown(
        "corerl config from-verl",
        "Converts a verl command to a config.",
        [
            "corerl config from-verl algorithm.adv_estimator=grpo data.train_files=sums/train.parquet "
            "data.train_batch_size=16 data.max_response_length=8 actor_rollout_ref.model.path=model "
            "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8"
        ],
    ),
    Shown(
        "corerl simulate",
        "Simulates layouts of GPUs.",
        ["corerl simulate train.yaml --gpus 2 --steps 1 --most 2"],
    ),
    Shown(
        "corerl profile",
        "Measures this machine for `corerl simulate --table`.",
        ["corerl profile train.yaml --out table.yaml --name mine"],
    ),
    Shown("corerl doctor", "Describes the environment for a bug report.", ["corerl doctor"], 20),
    Shown(
        "corerl engine install vllm",
        "Makes a Python environment for vLLM (2.4 GB and more). Here, into a folder with other files.",
        ["corerl engine install vllm --path sums"],
        codes=(1, 2),
    ),
    Shown(
        "corerl engine install sglang",
        "Makes a Python environment for SGLang. Here, into a folder with other files.",
        ["corerl engine install sglang --path sums"],
        codes=(1, 2),
    ),
    Shown(
        "Errors",
        "One sentence; exit code 2 for a wrong request, 1 for a failed run ([errors](reference/errors.md)).",
        [
            "cat wrong.yaml",
            "corerl train wrong.yaml",
            "corerl train train.yaml algorithm.adv_estimator=grpoo",
            "corerl train train.yaml data.train_files=[sum/train.parquet]",
            "corerl train train.yaml data.train_batch_size=10",
            "corerl export runs/nothing out",
        ],
        codes=(0, 1, 2),
    ),
)

SPECIFIC = (
    (r"(?m)^(working|waiting for .*) \(\d+ s\)\n", ""),
    (r"\b\d{8}-\d{6}(-\d+)?\b", "20261201-090000"),
    (r"\b\d+(\.\d+)?(e-\d+)? (s|ms|min|h|MiB|GiB|GB|MB|KiB|kB)\b", r"… \3"),
    (r"\b\d+(\.\d+)?(k|M)? tokens/s", "… tokens/s"),
    (r"\btokens/s +\d+", "tokens/s …"),
    (r"(timing_s/step: ).*", r"\1…"),
    (r'"id":"chatcmpl-\w+"', '"id":"chatcmpl-…"'),
    (r'"created":\d+', '"created":…'),
    (r"\bprocess \d+", "process …"),
)
"""facts of the machine and the moment"""
COLUMNS = (r"(?m)^(corerl\S*  +)(\d+\.\d{1,2})(?=  )", r"(?m)^(corerl\S*  .*  )(\d+\.\d)(?=  |$)")
"""milliseconds in the table of ``plugins trace``"""


def normalised(text: str, folder: Path) -> str:
    """An output without colours, and without facts of the machine and the moment."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    for place, name in ((folder, "."), (ROOT, "corerl"), (Path(sys.prefix), ".venv"), (Path.home(), "~")):
        text = text.replace(str(place), name)
    for pattern, replacement in SPECIFIC:
        text = re.sub(pattern, replacement, text)
    for pattern in COLUMNS:
        text = re.sub(pattern, lambda found: found[1] + "…".ljust(len(found[2])), text)
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def shortened(text: str, most: int) -> str:
    """At most ``most`` lines: the first and the last."""
    lines = text.splitlines()
    if len(lines) <= most:
        return text
    return "\n".join([*lines[: most * 2 // 3], f"… {len(lines) - most} lines …", *lines[len(lines) - most // 3 :]])


def started(line: str, folder: Path) -> tuple[int, IO[str]]:
    """A process of its own that runs a line as the shell would, and its output, standard error included.

    The process of a command of corerl is a copy of this one, which has imported torch.
    """
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.setpgid(0, 0)
            os.chdir(folder)
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            program, *words = shlex.split(line)
            if program != "corerl":
                os.execvp("sh", ["sh", "-c", line])
            code = run([each for word in words for each in ([str(*Path().glob(word))] if "*" in word else [word])])
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        finally:
            os._exit(70)
    os.close(writer)
    return process, os.fdopen(reader)


def output(
    line: str, folder: Path, codes: Sequence[int] = (0,), ready: str = "", then: Callable[[], None] = lambda: None
) -> str:
    """What a line of the shell prints. At the first line with ``ready``, call ``then`` and press Ctrl-C.

    Raises:
        SystemExit: another exit code than ``codes``, no ``ready``, or longer than ``DEADLINE``.
    """
    process, lines = started(line, folder)
    clock = threading.Timer(DEADLINE, os.killpg, (process, signal.SIGKILL))
    clock.start()
    printed, waits = "", bool(ready)
    with lines:
        for each in lines:
            printed += each
            if waits and ready in each:
                waits = False
                then()
                os.kill(process, signal.SIGINT)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    clock.cancel()
    if waits or code not in codes:
        raise SystemExit(f"{line}: exit code {code}\n{printed}")
    return printed


def outputs(section: Shown, folder: Path) -> list[str]:
    """What each line of a section prints."""
    if not section.ready:
        return [output(line, folder, section.codes) for line in section.lines]
    server, *others = section.lines
    answers: list[str] = []
    printed = output(
        server, folder, section.codes, section.ready, lambda: answers.extend(output(line, folder) for line in others)
    )
    return [printed, *answers]


def rendered(section: Shown, folder: Path) -> str:
    """A section of the page."""
    blocks = [
        f"$ {line}\n{shortened(normalised(each, folder), section.most)}".rstrip()
        for line, each in zip(section.lines, outputs(section, folder), strict=True)
    ]
    between = "\n```\n\n```console\n" if section.ready else "\n"  # two terminals
    return f"\n## {section.title}\n\n{section.words}\n\n```console\n{between.join(blocks)}\n```\n"


def installed() -> list[str]:
    """Every command that ``corerl --help`` names, as the sections name it."""
    return [f"corerl {entry.name.replace('.', ' ')}" for entry in plugins().registries.commands]


def page() -> str:
    """The page; every command runs."""
    text = (
        "# Gallery\n\nThe output of every command, from runs on small data on a CPU. "
        "[Commands](reference/commands.md) has all options.\n"
        "Times, rates, sizes and places of the machine are shown as `…`.\n\n"
        "[`scripts/pages/gallery.py`](../scripts/pages/gallery.py) runs the commands and writes this page "
        "(`make gallery`).\n"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for file, content in FILES.items():
            (folder / file).write_text(content)
        text += "\n## Files\n\nThe commands read two of these files first:\n\n"
        text += f"```yaml\n# train.yaml\n{FILES['train.yaml']}```\n\n```yaml\n# sft.yaml\n{FILES['sft.yaml']}```\n"
        for section in SECTIONS:
            text += (shown := rendered(section, folder))
            print(shown, flush=True)
    return text


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    import transformers  # noqa: F401  once, for the processes of all commands

    PAGE.write_text(page())
