"""Known problems: what one sees, why, what helps. Remedies of findings and docs/troubleshooting.md are made from this.

``python scripts/troubleshooting.py`` writes the page.
"""

import functools
import re
from dataclasses import dataclass

PAGE = "docs/troubleshooting.md"

TITLES = {
    "install": "Installing and finding parts",
    "config": "The configuration",
    "model": "Model and tokenizer",
    "data": "Data and scores",
    "memory": "Memory",
    "devices": "GPUs, ranks and machines",
    "engines": "Rollout engines",
    "training": "While it trains",
}


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        name: of its paragraph on the page.
        room: a key of ``TITLES``.
        seen: messages, ``…`` for what varies; the first of the table that a message contains is its problem.
        cause: why.
        remedy: what to do.
        foreign: the messages are those of a library.
    """

    name: str
    room: str
    seen: tuple[str, ...]
    cause: str
    remedy: str
    foreign: bool = False


def problem_of(message: str) -> Problem | None:
    """The known problem that a message tells of, or None."""
    return next((each for each in PROBLEMS if any(_pattern(seen).search(message) for seen in each.seen)), None)


@functools.cache
def _pattern(seen: str) -> re.Pattern[str]:
    return re.compile(".*?".join(map(re.escape, seen.split("…"))), re.DOTALL)


def page() -> str:
    """The text of docs/troubleshooting.md."""
    lines = [
        "# Troubleshooting",
        "",
        "`corerl check config.yaml` finds most of this before a run starts, and `corerl doctor` prints what belongs in a",
        "bug report. This page is made from the table that the messages' remedies come from,",
        "[`corerl/check/problems.py`](../corerl/check/problems.py), by `python scripts/troubleshooting.py`; `…` stands for",
        "what varies.",
    ]
    for room, title in TITLES.items():
        lines += ["", f"## {title}"]
        for each in (problem for problem in PROBLEMS if problem.room == room):
            seen = [f"> `{text}`" + ("" if text == each.seen[-1] else "  ") for text in each.seen]
            lines += ["", f"### {each.name}", "", *seen, "", f"{each.cause} **{each.remedy}**"]
    return "\n".join(lines) + "\n"


PROBLEMS = (
    Problem(
        "not installed",
        "install",
        ("which is not installed (pip install …)",),
        "The name is that of a distribution which this environment has not.",
        "Install the distribution that the message names; `corerl plugins list` shows what is there.",
    ),
    Problem(
        "disabled",
        "install",
        ("which is disabled (plugins.disable or …)",),
        "The distribution is left out by the config, by --disable-plugin or by CORERL_DISABLE_PLUGINS.",
        "Take it out of there, or select another name.",
    ),
    Problem(
        "name clash",
        "install",
        ("is registered by … and by …", "is scored by …: choose one with"),
        "Two installed distributions register one name.",
        "Disable one of them with plugins.disable, or name the part as package.module:attribute.",
    ),
    Problem(
        "engine missing",
        "engines",
        ("cannot import …: make an environment with it", "no … in the environment of"),
        "Engines pin a torch of their own, so they live in a Python environment beside the trainer's.",
        "Run `corerl engine install NAME` and set rollout.options.python to the interpreter that it prints.",
    ),
    Problem(
        "engine interpreter",
        "engines",
        ("is no program: name the interpreter that",),
        "rollout.options.python names no file that can be run; a relative path counts from the working directory.",
        "Set it to the interpreter that `corerl engine install NAME` printed, as an absolute path.",
    ),
    Problem(
        "engine version",
        "engines",
        ("is outside of the tested range (>=…,<…)",),
        "Engines change their insides between minor versions, and weights reach them there.",
        "Install a version of the range into the engine's environment; rollout.options.untested_version: error "
        "refuses others.",
    ),
    Problem(
        "engine does not start",
        "engines",
        ("engine (process …) ended with …", "the start of the … engine (start_timeout) took longer than"),
        "Mostly too little free memory for gpu_memory_utilization, a version of the engine or of its kernels that does "
        "not fit the driver, or a port that another process holds; the last lines of its log, in the message, say which.",
        "Lower rollout.options.gpu_memory_utilization, end other processes on the GPU (nvidia-smi), check the engine's "
        "version with `corerl check`, and raise rollout.options.start_timeout where it only is slow.",
    ),
    Problem(
        "cannot be imported",
        "install",
        ("cannot be imported",),
        "The part is registered, and the module that holds it fails on import: a package is missing or too old.",
        "Install the package that the message names (pip install), or run `corerl plugins check NAME` for the whole story.",
    ),
    Problem(
        "requirement",
        "install",
        ("needs … and … is installed", "needs …, which is not there"),
        "A distribution was installed without its dependencies, or something replaced one of them later.",
        "Install the version that it asks for (pip install).",
    ),
    Problem(
        "unknown key",
        "config",
        ("unknown key",),
        "Keys are checked, so that a misspelt one is not silently without effect. Configs of verl have other sections: "
        "actor_rollout_ref.actor is actor, actor_rollout_ref.rollout is rollout, trainer.n_gpus_per_node is "
        "runtime.n_gpus_per_node.",
        "`corerl config show` lists every key; the message names the nearest.",
    ),
    Problem(
        "unknown name",
        "config",
        ("unknown … '…'…known:",),
        "No installed plugin registers this name.",
        "`corerl plugins list` shows all names by kind.",
    ),
    Problem(
        "batch does not divide",
        "config",
        ("prompts do not divide into mini-batches of", "prompts are more than data.train_batch_size"),
        "ppo_mini_batch_size counts prompts, as train_batch_size does, and every mini-batch has as many.",
        "Take one of the sizes that the message names.",
    ),
    Problem(
        "one response to a prompt",
        "config",
        ("compares the responses to one prompt",),
        "A group estimator's baseline is the mean of the other responses to the same prompt.",
        "Set rollout.n to 2 or more (8 is usual), or take algorithm.adv_estimator=gae with a critic.",
    ),
    Problem(
        "heads do not divide",
        "devices",
        ("does not divide …; … would", "GPUs cannot share evenly", "consecutive ranks cannot share"),
        "Tensor, context and sequence parallel ranks have whole attention heads each, and equal parts of the widths; "
        "pipeline ranks have whole layers.",
        "Take one of the sizes that the message names.",
    ),
    Problem(
        "ranks do not divide",
        "devices",
        ("one copy of the model takes … ranks", "do not divide …, and a copy lives on one machine"),
        "Ranks = data × tensor × pipeline × context parallel, and an engine's copy of the model has its GPUs on one "
        "machine.",
        "Change runtime.nnodes × runtime.n_gpus_per_node or the parallel sizes, so that one divides the other.",
    ),
    Problem(
        "one process, several GPUs",
        "devices",
        ("runs in one process, and …",  "is more than runtime 'local', one process, can use"),
        "Runtime local is one process, and so is strategy torch; several GPUs need a worker each.",
        "Set runtime.name=ray and actor.strategy=fsdp (or megatron), or use one GPU.",
    ),
    Problem(
        "too few GPUs",
        "devices",
        ("GPUs are asked for and", "and the cluster's … have …", "and the cluster's 1 has …"),
        "The config asks for more places than the machine or the cluster has.",
        "Lower runtime.n_gpus_per_node, runtime.nnodes or rollout.n_gpus_per_node, or join further machines (ray start).",
    ),
    Problem(
        "no CUDA device",
        "devices",
        ("cuda is asked for and torch sees no CUDA device",),
        "No GPU, a driver older than torch's CUDA, a CPU build of torch, or an empty CUDA_VISIBLE_DEVICES.",
        "`corerl doctor` shows the driver and torch's CUDA; install the torch build for your driver, or set "
        "actor.device=cpu.",
    ),
    Problem(
        "no such model folder",
        "model",
        ("is no folder here and cannot be had from the hub", "model.path: … cannot be loaded: …"),
        "The path is wrong, the hub cannot be reached, its access is restricted, or the architecture is unknown to this "
        "transformers.",
        "Give a local folder with config, tokenizer and weights in model.path, or make the hub reachable (HF_TOKEN, "
        "HF_ENDPOINT).",
    ),
    Problem(
        "no chat template",
        "model",
        ("its tokenizer has no chat template",),
        "Base models often come without one, and prompts are chats.",
        "Name a Jinja file in model.chat_template.",
    ),
    Problem(
        "responses never end",
        "model",
        ("the chat template ends a turn with …", "more than half of the responses were cut off"),
        "The token that the template ends a turn with stops no generation, or responses are longer than "
        "data.max_response_length.",
        "Add the token to eos_token_id in generation_config.json, or raise data.max_response_length.",
    ),
    Problem(
        "no such data file",
        "data",
        ("no such file (looked for …)",),
        "Paths count from the working directory of the command, on every machine.",
        "Make the file with `corerl prepare NAME --out FOLDER`, or give its absolute path in data.train_files.",
    ),
    Problem(
        "wrong columns",
        "data",
        ("has no column", "rows of a wrong type", "no column '"),
        "A prompt file is parquet with the columns data_source, prompt (a list of {role, content}) and reward_model "
        "({style, ground_truth}).",
        "`corerl data inspect FILE` shows what is there; docs/data.md has the schema and how to write it.",
    ),
    Problem(
        "prompts too long",
        "data",
        ("prompts are longer than data.max_prompt_length", "of the prompts … are longer than data.max_prompt_length"),
        "With data.truncation=error and without data.filter_overlong_prompts a prompt that is too long ends the run.",
        "Raise data.max_prompt_length, leave them out (data.filter_overlong_prompts=true) or cut them "
        "(data.truncation=left).",
    ),
    Problem(
        "source without scorer",
        "data",
        ("has no scorer",),
        "Scorers are found by the column data_source, and no installed one lists this value.",
        "Give it one: reward.scorers='{SOURCE: NAME}', or reward.scorer=./my_reward.py:score for all rows.",
    ),
    Problem(
        "all rewards are 0",
        "data",
        ("all rewards are", "all scores are"),
        "The scorer does not find the answer (another format than it looks for), or another scorer was meant for this "
        "data_source, or the model cannot do the task yet. Equal rewards in a group give no gradient.",
        "Look at the samples in the run's folder, score a few by hand with `corerl score`, see who scores what with "
        "`corerl check`, and start with `corerl sft` where the model knows no format.",
    ),
    Problem(
        "too few prompts",
        "data",
        ("prompts are fewer than a batch of",),
        "A step takes whole batches of different prompts.",
        "Lower data.train_batch_size, or give more data.",
    ),
    Problem(
        "scores that fail",
        "data",
        ("responses could not be scored (…), more than reward.max_error_rate=",),
        "The scorer raises, is late or gives no number.",
        "The message has the most frequent reasons; `corerl score` runs it alone. reward.timeout and reward.manager="
        "parallel help against slow and hanging ones.",
    ),
    Problem(
        "GPU memory too small",
        "memory",
        ("of GPU memory, and the GPU has",),
        "Weights, gradients, optimizer state and what one micro-batch leaves for its backward pass must fit, beside the "
        "engine where it keeps its memory.",
        "In this order: model.enable_gradient_checkpointing=true, a lower actor.ppo_max_token_len_per_gpu, the strategy's "
        "logits_chunk_size, rollout.free_cache_engine=true, optimizer_offload and param_offload of fsdp and megatron, "
        "more GPUs with fsdp, model.lora_rank.",
    ),
    Problem(
        "out of memory",
        "memory",
        ("CUDA out of memory", "CUDA error: out of memory", "OutOfMemoryError"),
        "The phase that is named in the trace took more than the GPU had left.",
        "Lower rollout.options.gpu_memory_utilization (0.4) where the engine keeps its memory; set "
        "model.enable_gradient_checkpointing=true; lower actor.ppo_max_token_len_per_gpu; "
        "actor.strategy={name: fsdp, optimizer_offload: true}. `corerl check` shows the memory of every phase.",
        foreign=True,
    ),
    Problem(
        "no room for the KV cache",
        "memory",
        ("sequences of … tokens fit into the KV cache", "No available memory for the cache blocks"),
        "What gpu_memory_utilization allows the engine is used up by its copy of the weights.",
        "Raise rollout.options.gpu_memory_utilization, or rollout.tensor_model_parallel_size, or lower "
        "data.max_response_length.",
        foreign=True,
    ),
    Problem(
        "no output folder",
        "config",
        ("cannot be used: nothing can be written to",),
        "The folder for runs is not writable.",
        "Set trainer.output_dir to a folder of yours with room for checkpoints.",
    ),
    Problem(
        "little disk",
        "config",
        ("of disk are free below",),
        "A checkpoint holds weights, optimizer state and an exported model.",
        "Free some room, set checkpoint.max_to_keep, or another trainer.output_dir.",
    ),
    Problem(
        "NCCL",
        "devices",
        ("NCCL error", "ncclSystemError", "ncclUnhandledCudaError"),
        "On one machine mostly shared memory that is too small (containers: --shm-size) or a GPU that is gone; between "
        "machines an interface that NCCL should not take, or InfiniBand that does not work.",
        "Run once with NCCL_DEBUG=INFO; set NCCL_SOCKET_IFNAME to the interface between the machines, and "
        "NCCL_IB_DISABLE=1 or NCCL_NET_GDR_LEVEL where InfiniBand is the cause; with Ray add the names to "
        "runtime.options.environment.",
        foreign=True,
    ),
    Problem(
        "a rank is late",
        "devices",
        ("waited for another rank in … longer than", "lost another rank in"),
        "Another rank died (out of memory, mostly), or does something much longer, such as reading a large model.",
        "Look at the other workers' output for the first error; raise the strategy's timeout where a rank only is slow.",
    ),
    Problem(
        "a worker died",
        "devices",
        ("worker … died", "ActorDiedError", "The actor died"),
        "Mostly the system ended it for using too much main memory, or a collective of NCCL failed.",
        "The message names its log; see dmesg for the out-of-memory killer, and `NCCL` and `out of memory` on this page.",
        foreign=True,
    ),
    Problem(
        "Ray does not answer",
        "devices",
        ("did not answer within runtime.options.connect_timeout", "nothing answers at"),
        "No cluster listens at runtime.options.address, or a firewall is between.",
        "`ray status --address HOST:PORT` from this machine; start one with `ray start --head`, join others with "
        "`ray start --address=HOST:PORT`; null starts one here.",
    ),
    Problem(
        "request too large for Ray",
        "devices",
        ("Request Entity Too Large", "HTTPRequestEntityTooLarge"),
        "`ray job submit --working-dir` packs the whole folder, weights and checkpoints too.",
        "Exclude *.safetensors, runs and data in the job's runtime_env (excludes), or start `corerl train` on a machine "
        "of the cluster without a job.",
        foreign=True,
    ),
    Problem(
        "probabilities differ",
        "training",
        ("log-probs of rollout and trainer differ", "max_log_prob_diff"),
        "Engine and trainer compute the same tokens with other kernels; beyond a small difference the gradient is of "
        "another policy, or weights did not arrive.",
        "Set algorithm.rollout_correction.rollout_is=token, the same model.dtype for both, and look at "
        "rollout.verify_weights_freq.",
    ),
    Problem(
        "not finite",
        "training",
        ("is not finite", "the optimizer step was not taken"),
        "A scorer's score, a learning rate that is too high, or a loss of one's own.",
        "Look at the samples under <run>/nonfinite; lower actor.optim.lr; trainer.on_nonfinite=skip leaves them out.",
    ),
    Problem(
        "memory of a machine",
        "memory",
        ("of main memory",),
        "Rank 0 reads the model into main memory, and what is offloaded lives there.",
        "Offload less, or take a machine with more.",
    ),
)
