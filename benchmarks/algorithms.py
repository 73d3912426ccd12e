"""Learning curves of every algorithm on the task of ``examples/hasty-teacher``, from the same cold starts, beside GRPO.

For each seed its data, model and cold start are made once (by ``examples/hasty-teacher/run.sh``'s commands);
every algorithm of ``ALGORITHMS`` then starts from it, with that example's ``config.yaml`` and its own overrides: the
options of its paper, and nothing tuned to the task. Those of ``TURNS``, which credit turns, do the same with
``examples/agents``. Each run has one thread; ``--jobs`` of them run at a time.

    python benchmarks/algorithms.py --jobs 2 --seeds 0,1,2 --out runs/algorithms     # train, draw, print the table
    python benchmarks/algorithms.py --draw docs/algorithms/curves.json --out docs/algorithms

A run is compared with GRPO at equal compute, counted in generated responses: ReMax generates a greedy response to every
prompt as well, and DAPO generates until its batch is full. A critic's passes are not counted.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BASELINE = "grpo"
GAIN = 0.25
"""least rise of validation accuracy"""
TEACHER = "{teacher}"
"""replaced by the folder of the model that GRPO trained from the same cold start"""
STEPS = 30

TURNS: dict[str, list[str]] = {
    "agents_grpo": [],
    "turn_returns": ["algorithm.adv_estimator={name: turn_returns, whiten: true}"],
    "turn_grpo": ["algorithm.adv_estimator=turn_grpo"],
    "turn_rloo": ["algorithm.adv_estimator=turn_rloo"],
    "gigpo": ["algorithm.adv_estimator=gigpo"],
    "turn_gae": ["algorithm.adv_estimator=turn_gae", "critic.optim.lr=1e-3"],
}
"""estimators of turns, on the task of examples/agents; the first is the baseline"""

DISTILLED = ["actor.use_kl_loss=false", "algorithm.adv_estimator=reinforce_plus_plus", "rollout.n=1"]

INT2 = ["rollout.options.quantization=int2", "algorithm.rollout_correction.max_log_prob_diff=.inf"]
"""a sampler of low precision, without a limit on its mismatch"""

GSPO = "actor.policy_loss={name: gspo, clip_ratio_low: 3e-4, clip_ratio_high: 4e-4}"

ALGORITHMS: dict[str, list[str]] = {
    BASELINE: [],
    # advantage estimators
    "dr_grpo": ["algorithm.adv_estimator=dr_grpo", "actor.loss_agg_mode=seq-mean-token-sum-norm"],
    "grpo_passk": ["algorithm.adv_estimator=grpo_passk"],
    "gdpo": ["algorithm.adv_estimator=gdpo", f"reward.scorer={ROOT}/benchmarks/two_part_reward.py:score"],
    "rloo": ["algorithm.adv_estimator=rloo"],
    "reinforce_plus_plus": ["algorithm.adv_estimator=reinforce_plus_plus"],
    "reinforce_plus_plus_baseline": ["algorithm.adv_estimator=reinforce_plus_plus_baseline"],
    "remax": ["algorithm.adv_estimator=remax"],
    "opo": ["algorithm.adv_estimator=opo"],
    "gpg": ["algorithm.adv_estimator=gpg", "actor.policy_loss=gpg"],
    "maxrl": ["algorithm.adv_estimator=maxrl"],
    "optimal_token_baseline": ["algorithm.adv_estimator=optimal_token_baseline"],
    "ppo": ["algorithm.adv_estimator={name: gae, gamma: 1.0, lam: 0.95}", "critic.optim.lr=1e-3"],
    "tpo": [
        "algorithm.adv_estimator=tpo",
        "actor.policy_loss=gpg",
        "actor.loss_agg_mode=seq-mean-token-sum",
        "actor.ppo_mini_batch_size=64",
    ],
    "a2po_group": [
        "algorithm.adv_estimator=a2po_group",
        "actor.policy_loss=a2po",
        "actor.loss_agg_mode=seq-mean-token-mean",
        "actor.use_kl_loss=false",
    ],
    # policy losses, with GRPO's advantages
    "gspo": [GSPO, "actor.loss_agg_mode=seq-mean-token-mean"],
    "luspo": ["actor.policy_loss=luspo", "actor.loss_agg_mode=seq-mean-token-sum"],
    "vespo": ["actor.policy_loss=vespo"],
    "gmpo": ["actor.policy_loss=gmpo", "actor.loss_agg_mode=seq-mean-token-mean"],
    "cispo": ["actor.policy_loss=cispo"],
    "sapo": ["actor.policy_loss=sapo"],
    "clip_cov": ["actor.policy_loss={name: clip_cov, clip_ratio_high: 0.28}"],
    "kl_cov": ["actor.policy_loss=kl_cov"],
    "dppo_tv": ["actor.policy_loss=dppo_tv"],
    "dppo_kl": ["actor.policy_loss=dppo_kl"],
    "dro": ["actor.policy_loss=dro"],
    "reinforce": ["actor.policy_loss=reinforce"],
    "opd": ["actor.policy_loss={name: opd, use_task_reward: false}", "actor.use_kl_loss=false", f"ref.path={TEACHER}"],
    "distill": ["actor.policy_loss={name: distill, teacher: {teacher}}", *DISTILLED],
    "distill_top_k": ["actor.policy_loss={name: distill, teacher: {teacher}, form: top_k, top_k: 8}", *DISTILLED],
    "distill_sampled": ["actor.policy_loss={name: distill, teacher: {teacher}, form: sampled}", *DISTILLED],
    # the rest
    "dapo": [
        "preset=dapo",
        "actor.use_kl_loss=false",
        "reward.manager={name: dapo, plus_minus_one: true, overlong_buffer_len: 2}",
    ],
    "scalerl": [
        "preset=scalerl",
        "algorithm.adv_estimator=grpo_batch_std",
        "actor.policy_loss={name: cispo, clip_ratio_high: 4.0}",
        "actor.use_kl_loss=false",
    ],
    "rollout_correction": ["algorithm.rollout_correction={rollout_is: token, rollout_is_mode: mask}"],
    "sampler_int2": INT2,
    "score_centering": [
        *INT2,
        "rollout.record=[top_log_probs]",
        "algorithm.rollout_correction.score_centering=true",
    ],
    # top-p 0.9 and 0.5, whose log-probs of training are over the kept tokens, and over the vocabulary
    "truncated_kept": ["rollout.top_p=0.9", "rollout.record=[kept_tokens]"],
    "truncated": ["rollout.top_p=0.9", "algorithm.rollout_correction.max_log_prob_diff=.inf"],
    "truncated_half_kept": ["rollout.top_p=0.5", "rollout.record=[kept_tokens]"],
    "truncated_half": ["rollout.top_p=0.5", "algorithm.rollout_correction.max_log_prob_diff=.inf"],
    "kl": ["actor.kl_loss_type=kl"],
    "abs": ["actor.kl_loss_type=abs"],
    "mse": ["actor.kl_loss_type=mse"],
    "kl_straight_through": ["actor.kl_loss_type=kl+"],
    "full": ["actor.kl_loss_type=full"],
    "kl_in_reward": ["actor.use_kl_loss=false", "algorithm.use_kl_in_reward=true"],
    "adaptive_kl": [
        "actor.use_kl_loss=false",
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_ctrl={type: adaptive, kl_coef: 0.001}",
    ],
    **TURNS,
}
BESIDE = {
    "score_centering": ("sampler_int2",),
    "truncated_kept": ("truncated",),
    "truncated_half_kept": ("truncated_half",),
}
"""further curves in the picture of an algorithm"""

BASELINES = (BASELINE, "agents_grpo")
WORDS = {"hasty-teacher": "hasty teacher", "agents": "agent example"}


def example(name: str) -> str:
    """The folder in ``examples`` of an algorithm's task."""
    return "agents" if name in TURNS else "hasty-teacher"


def baseline(name: str) -> str:
    """The algorithm that stands beside this one."""
    return BASELINES[name in TURNS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=lambda text: text.split(","), default=["0", "1", "2"], help="0,1,2")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--only", nargs="+", choices=ALGORITHMS, help="these algorithms, beside GRPO")
    parser.add_argument("--out", type=Path, default=Path("runs/algorithms"), help="folder of runs, curves and pictures")
    parser.add_argument("--draw", type=Path, help="draw the curves of this file and train nothing")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.draw:
        results = json.loads(arguments.draw.read_text())
    else:
        chosen = arguments.only or list(ALGORITHMS)
        names = list(dict.fromkeys([*map(baseline, chosen), *chosen]))
        results = measure(arguments.out.resolve(), arguments.seeds, names, arguments.jobs)
        (arguments.out / "curves.json").write_text(_compact(results))
    draw(results, arguments.out)
    text = table(results)
    (arguments.out / "table.md").write_text(text)
    print(text)


def measure(out: Path, seeds: Sequence[str], names: Sequence[str], jobs: int) -> dict[str, dict[str, Any]]:
    """Name → seed → the curve of that run, and what ended it early."""
    with ThreadPoolExecutor(jobs) as pool:
        tasks = [(task, seed) for task in sorted(set(map(example, names))) for seed in seeds]
        list(pool.map(lambda each: cold_start(out / each[0] / each[1], *each), tasks))
        results: dict[str, dict[str, Any]] = {name: {} for name in names}
        for group in ([name for name in names if name in BASELINES], [name for name in names if name not in BASELINES]):
            runs = {
                (name, seed): pool.submit(train, out / example(name) / seed, name, seed)
                for name in group
                for seed in seeds
            }
            for (name, seed), run in runs.items():
                results[name][seed] = run.result()
                print(
                    name, seed, results[name][seed]["accuracy"][-1:], results[name][seed].get("error", ""), flush=True
                )
    return results


def cold_start(folder: Path, task: str, seed: str) -> None:
    """The commands of an example before its last, in ``folder``."""
    folder.mkdir(parents=True)
    (folder / "examples").symlink_to(ROOT / "examples")
    script = (ROOT / "examples" / task / "run.sh").read_text().replace("\\\n", "")
    additions = {"tiny-model": ["--seed", seed], "sft": [f"trainer.seed={seed}"], "prepare": []}
    for line in script.splitlines():
        if line.startswith("corerl ") and (words := shlex.split(line))[1] in additions:
            _corerl(folder, [*words[1:], *additions[words[1]]]).check_returncode()


def train(folder: Path, name: str, seed: str) -> dict[str, Any]:
    """Train one algorithm; its curve: step, responses generated so far and validation accuracy of each evaluation.

    A run that ended early has an ``error`` too: DAPO stops when no group has a spread any more.
    """
    teacher = next(iter(folder.glob(f"runs/{BASELINE}/*/checkpoints/global_step_{STEPS}/huggingface")), "")
    overrides = [override.replace(TEACHER, str(teacher)) for override in ALGORITHMS[name]]
    common = [f"trainer.seed={seed}", f"tracking.experiment_name={name}", "trainer.test_freq=1"]
    process = _corerl(folder, ["train", f"examples/{example(name)}/config.yaml", *common, *overrides])
    folders = sorted(folder.glob(f"runs/{name}/*/metrics.jsonl"))
    records = [json.loads(line) for line in folders[-1].read_text().splitlines()] if folders else []
    n = 1 if "rollout.n=1" in overrides else 16
    curve = _curve(records, 32 * 8 if name in TURNS else 64 * (n + (name == "remax")))
    if process.returncode:
        curve["error"] = process.stderr.strip().splitlines()[-1]
    return curve


def _curve(records: list[dict[str, float]], batch: int) -> dict[str, Any]:
    curve: dict[str, Any] = {"step": [], "responses": [], "accuracy": []}
    responses = 0.0
    for record in records:
        batches = record.get("training/num_gen_prompts", 64.0) / 64 if record["step"] else 0.0
        responses += batches * batch
        accuracy = _accuracy(record)
        if accuracy is not None:
            for key, value in (("step", record["step"]), ("responses", responses), ("accuracy", accuracy)):
                curve[key].append(value)
    return curve


def _accuracy(record: dict[str, float]) -> float | None:
    """Validation accuracy: the score before what a reward manager adds to it."""
    before = [value for name, value in record.items() if name.startswith("val-aux/") and "before_penalty" in name]
    scores = [value for name, value in record.items() if name.startswith("val-core/")]
    if before:
        return (before[0] + 1) / 2  # of a manager that turns 0 … 1 into -1 … 1
    return scores[0] if scores else None


def _corerl(folder: Path, arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "corerl", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=3000)


def at_equal_compute(results: dict[str, dict[str, Any]], name: str) -> Iterator[tuple[float, float]]:
    """(first accuracy, last accuracy within GRPO's number of responses) of each seed."""
    for seed, run in results[name].items():
        if not run["accuracy"]:
            continue
        budget = results[baseline(name)][seed]["responses"][-1]
        within = [
            accuracy for accuracy, spent in zip(run["accuracy"], run["responses"], strict=True) if spent <= budget
        ]
        yield run["accuracy"][0], within[-1]


def table(results: dict[str, dict[str, Any]]) -> str:
    """Markdown: accuracy before and after, of each seed, and the smallest rise."""
    lines = ["| algorithm | overrides | before | after | least rise | |", "|---|---|---|---|---|---|"]
    for name, runs in results.items():
        pairs = list(at_equal_compute(results, name))
        failures = [run["error"] for run in runs.values() if "error" in run]
        if not pairs:
            lines.append(f"| `{name}` | | | | | {failures[0]} |")
            continue
        before, after = (", ".join(f"{value:.3f}" for value in column) for column in zip(*pairs, strict=True))
        rise = min(last - first for first, last in pairs)
        verdict = _short(failures[0]) if failures else "" if rise >= GAIN else f"less than {GAIN}"
        shown = (override.replace(f"{ROOT}/", "") for override in ALGORITHMS[name])
        overrides = " ".join(f"`{override}`" for override in shown) or f"(the {WORDS[example(name)]}'s config)"
        lines.append(f"| `{name}` | {overrides} | {before} | {after} | {rise:.3f} | {verdict} |")
    return "\n".join(lines) + "\n"


def _short(error: str) -> str:
    return f"ended early: {error.removeprefix('error: ').partition(':')[0]}"


def _compact(results: dict[str, dict[str, Any]]) -> str:
    """JSON with a line for each algorithm."""
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(runs)}" for name, runs in results.items()) + "\n}\n"


def draw(results: dict[str, dict[str, Any]], out: Path) -> None:
    """One picture an algorithm: mean over seeds and the band between the least and the largest, beside GRPO's."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    for name, runs in results.items():
        figure, axes = pyplot.subplots(figsize=(5.2, 3.2), dpi=100)
        others = [(other, "tab:orange") for other in BESIDE.get(name, ()) if other in results]
        for each, colour in ((baseline(name), "0.5"), *others, (name, "tab:blue")):
            curves = [run for run in results[each].values() if run["accuracy"]]
            if not curves or (name in BASELINES and colour == "0.5"):
                continue
            columns = list(zip(*(curve["accuracy"] for curve in curves), strict=False))
            spent = zip(*(curve["responses"] for curve in curves), strict=False)
            responses = [sum(column) / len(column) / 1000 for column in spent]
            axes.plot(
                responses, [sum(column) / len(column) for column in columns], color=colour, label=each, marker="."
            )
            axes.fill_between(responses, [min(c) for c in columns], [max(c) for c in columns], color=colour, alpha=0.2)
        budget = max(run["responses"][-1] for run in results[baseline(name)].values()) / 1000
        axes.set(xlabel="generated responses, thousands", ylabel="validation accuracy")
        axes.set(xlim=(-0.02 * budget, 1.02 * budget), ylim=(0, 1.02))
        axes.set_title(f"{name}: {len(runs)} seeds, band from least to largest", fontsize=9)
        axes.legend(loc="lower right", fontsize=8)
        axes.grid(alpha=0.3)
        figure.tight_layout()
        figure.savefig(out / f"{name}.png")
        pyplot.close(figure)


if __name__ == "__main__":
    main()
