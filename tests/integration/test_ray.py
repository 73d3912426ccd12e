"""One worker under runtime ``ray`` does what it does under ``local``."""

import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics
from corerl_torch import restarts
from ray_clusters import local_cluster

pytestmark = pytest.mark.xdist_group("ray runs")  # whose cluster is started once

TIMINGS = ("timing", "perf/")
FILES = [
    *(f"{role}/{name}" for role in ("actor", "critic") for name in ("weights.safetensors", "optimizer.pt")),
    "huggingface/model.safetensors",
]

MINE = """
import os
from corerl import hookimpl
from listening import listeners

@hookimpl
def step_ended(step):
    with open("listening.txt", "a") as file:
        file.writelines(f"{each.is_local} {each}\\n" for each in listeners(os.getpid()))
"""


@pytest.fixture
def train(material, tmp_path, monkeypatch):
    """Train all four roles with overrides; returns the run's folder. Paths are relative to the working directory."""
    for plugin in ("corerl_ray", "corerl_ppo"):
        pytest.importorskip(plugin)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(material / "model")
    (tmp_path / "config.yaml").write_text(
        f"""
        model: {{path: model}}
        data: {{train_files: [{material}/data/train.parquet], val_files: [{material}/data/test.parquet],
               train_batch_size: 8, max_prompt_length: 64, max_response_length: 6}}
        algorithm: {{adv_estimator: gae}}
        actor: {{device: cpu, optim: {{lr: 1e-2}}, ppo_mini_batch_size: 4, use_kl_loss: true}}
        rollout: {{n: 4}}
        reward: {{scorer: ./reward.py:score, manager: naive}}
        trainer: {{total_training_steps: 3, test_freq: 2}}
        plugins: {{load: [mine.py]}}
        """
    )
    (tmp_path / "reward.py").write_text(
        "def score(response, ground_truth, data_source, extra_info):\n    return float(len(response) % 2)\n"
    )
    (tmp_path / "mine.py").write_text(MINE)

    def start(name, *overrides):
        assert run(["train", "config.yaml", f"trainer.output_dir={name}", *overrides]) == 0
        return next((tmp_path / name / "default").iterdir())

    return start


def numbers(folder: Path):
    """The metrics of a run that do not measure time or memory."""
    return [
        {name: value for name, value in record.items() if not name.startswith(TIMINGS)}
        for record in read_metrics(folder / "metrics.jsonl")
    ]


def assert_only_this_machine_can_connect(file: Path) -> None:
    """Of what each step saw of the controller, Ray's own processes, workers, ranks and scorers."""
    seen = file.read_text().splitlines()
    assert any("gcs_server" in line for line in seen) and any("WorkerHost" in line for line in seen)
    assert [line for line in seen if not line.startswith("True ")] == []


def latest(run: Path) -> Path:
    """The checkpoint of a run."""
    return run / "checkpoints" / (run / "checkpoints" / "latest").read_text()


def same_checkpoints(one: Path, other: Path, files: Sequence[str] = FILES) -> bool:
    folders = one, other
    states = [json.loads((folder / "state.json").read_text()) for folder in folders]
    for state in states:
        del state["config"]  # their runtimes differ
    same = [(folders[0] / name).read_bytes() == (folders[1] / name).read_bytes() for name in files]
    return states[0] == states[1] and all(same)


TALK = """
from corerl_envs import Start, Turn

class Talk:
    "Two more questions, which depend on the answers."

    async def reset(self, task, seed):
        return Start([])

    async def step(self, said, response):
        said.append(response)
        reward = len(response) % 3
        return Turn([{"role": "user", "content": f"after {len(response)}?"}], reward=reward, done=len(said) > 2)

    def close(self):
        with open("closed.txt", "a") as file:
            file.write("closed\\n")
"""


DEADLY = """
import os
import shutil
from pathlib import Path

from corerl.contracts.policy_losses import LossOutput

left = Path("updates.left")
GLOB = "default/*/checkpoints/global_step_1"

def loss(inputs):
    if left.is_file():
        number = int(left.read_text()) - 1
        left.write_text(str(number))
        if number == 0:  # what goes on has another run's checkpoint
            [checkpoint], [local] = Path("ray").glob(GLOB), Path("local").glob(GLOB)
            checkpoint.rename("own")
            shutil.copytree(local, checkpoint)
            os.kill(os.getpid(), 9)
    return LossOutput(-inputs.advantages * inputs.log_probs)
"""


DEADLY_ROWS = """
import os
from pathlib import Path

from corerl.contracts.advantage_estimators import Advantages

left = Path("steps.left")

def estimate(inputs):
    if left.is_file():
        number = int(left.read_text()) - 1
        left.write_text(str(number))
        if number == 0:
            os.kill(os.getpid(), 9)
    values = inputs.rewards.sum(1, keepdim=True) * inputs.response_mask
    return Advantages(values, values)
"""


DEADLY_SHARD = """
import os
from corerl import hookimpl
from corerl.contracts.advantage_estimators import Advantages

def estimate(inputs):
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), 9)
    return Advantages(inputs.rewards, inputs.rewards)

@hookimpl
def register_advantage_estimators(register):
    register("deadly", estimate, groups_alone=True)
"""


BRANCHING = """
class Branching:
    "Two answers, and a third to another prompt, which is a row of its own."

    def __init__(self, context):
        pass

    async def run(self, task, model):
        from corerl.contracts.agents import AgentResult

        first = await model.generate(task.prompt_ids, max_tokens=3)
        if sum(task.prompt_ids) % 3:
            await model.generate([*b"anew", *task.prompt_ids[:4]], max_tokens=4)
        last = await model.generate([*task.prompt_ids, *first.token_ids, *b" on"], max_tokens=4)
        return AgentResult(reward=len(last.text) % 3 + len(first.text) / 7)
"""


UNEVEN = """
def score(response, ground_truth, data_source, extra_info):
    if len(response) % 4 == 3:
        raise ValueError("three")
    return {"score": float(len(response) % 2), "words": len(response.split())}
"""


def test_a_cluster_that_does_not_answer_is_one_line(train, capsys):
    code = run(["train", "config.yaml", "runtime.name=ray", "runtime.options.address=127.0.0.1:1"])
    assert code == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("error: no Ray cluster answers at runtime.options.address=127.0.0.1:1")
    shutil.rmtree("runs", ignore_errors=True)


critic = pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="one more process a run: set CORERL_CHAOS=1")


CRITIC_AND_ALL = [
    "algorithm.adv_estimator=gae",
    "actor.use_kl_loss=true",
    "actor.ppo_epochs=2",
    "actor.zero_advantage=drop",
    "actor.loss_agg_mode=prompt-mean",
    "algorithm.rollout_correction={rollout_is: token, rollout_rs: token_k1, rollout_rs_threshold: 1.00001}",
    "trainer.total_training_steps=2",
]
"""critic, reference, several epochs, rejected tokens, dropped prompts"""


@pytest.fixture(scope="class")
def five_cpus():
    """A cluster with five CPUs on paper, whatever this machine has."""
    pytest.importorskip("ray")
    with local_cluster(5):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("five_cpus")
class TestOnOneClusterOfFiveCpus:
    def test_a_strategy_of_one_process_refuses_two_workers_before_a_model_is_loaded(self, train, capsys):
        code = run(["train", "config.yaml", "trainer.output_dir=out", "runtime.name=ray", "runtime.options.workers=2"])
        assert code == 2
        said = capsys.readouterr().err.strip().splitlines()[-1]
        sentence = r"error: (\w+)\.strategy: 'torch' runs in one process, and runtime 'ray' would start 2 \1 workers: "
        assert re.match(sentence, said), said  # all roles start at the same time, and one of them fails first
        assert not Path("out").exists()

    @pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="two more processes: set CORERL_CHAOS=1")
    def test_episodes_in_two_processes_train_as_in_the_controller(self, train):
        pytest.importorskip("corerl_envs")
        Path("talk.py").write_text(TALK)
        given = [
            "algorithm.adv_estimator=grpo",
            "actor.use_kl_loss=false",
            "rollout.multi_turn={environment: ./talk.py:Talk, score_response: false, max_turn_length: 8}",
            "data.max_response_length=64",
            "trainer.total_training_steps=2",
        ]
        here = train("here", *given)
        there = train("there", *given, "runtime.name=ray", "rollout.num_workers=2")
        assert same_checkpoints(latest(here), latest(there), FILES[:2])
        steps = numbers(there)
        for ours, expected in zip(steps, numbers(here), strict=True):
            for name, value in expected.items():
                # the requests that an engine computes together round its log-probs, which nothing is trained with
                if "seconds" not in name:
                    assert ours[name] == pytest.approx(value, rel=1e-6, abs=1e-5), (ours["step"], name)
        assert max(step.get("agent/turns/mean", 0) for step in steps) > 1
        assert Path("closed.txt").read_text().split() == ["closed"] * 3
        assert_only_this_machine_can_connect(Path("listening.txt"))

    @pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="two more processes: set CORERL_CHAOS=1")
    @pytest.mark.parametrize(
        ("given", "workers", "files"),
        [
            (["algorithm.adv_estimator=grpo", "actor.use_kl_loss=false"], 2, FILES[:2]),
            (CRITIC_AND_ALL, 1, FILES),
        ],
        ids=["plain", "all"],
    )
    def test_responses_decoded_and_scored_in_other_processes_train_as_in_the_controller(
        self, train, given, workers, files
    ):
        given = [*given, "trainer.log_rollouts_freq=1"]
        here = train("here", *given)
        there = train("there", *given, "runtime.name=ray", f"rollout.num_workers={workers}")
        assert same_checkpoints(latest(here), latest(there), files)
        for ours, expected in zip(numbers(there), numbers(here), strict=True):
            for name, value in expected.items():
                assert ours[name] == pytest.approx(value, rel=1e-6, abs=1e-5), (ours["step"], name)
        columns = ["prompt", "response", "score"]
        for file in sorted((here / "rollouts").iterdir()):
            other = pq.read_table(there / "rollouts" / file.name, columns=columns)
            assert other.equals(pq.read_table(file, columns=columns)) and any(other["response"].to_pylist())
        assert_only_this_machine_can_connect(Path("listening.txt"))

    @pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="three runs under Ray: set CORERL_CHAOS=1")
    @pytest.mark.parametrize("kind", ["filtered", "agent", "one update"])
    def test_shards_train_bit_for_bit_as_one_process(self, train, kind, capfd):
        """Failed scores make groups uneven, a filter drops others; episodes have several rows. Unequal shards of 8."""
        Path("uneven.py").write_text(UNEVEN)
        Path("branching.py").write_text(BRANCHING)
        given = ["algorithm.adv_estimator=grpo", "actor.ppo_epochs=2", "trainer.total_training_steps=2"]
        given += ["trainer.log_rollouts_freq=1", "trainer.log_rollouts_tokens=20", "runtime.name=ray"]
        if kind == "one update":  # which gives the old log-probs
            given += ["actor.ppo_epochs=1", "actor.ppo_mini_batch_size=8"]
        corrected = "{rollout_is: token, rollout_rs: token_k1, rollout_rs_threshold: 1.0000001}"
        if kind == "agent":  # whose requests an engine computes together as they come, which rounds its log-probs
            given += ["rollout.agent=./branching.py:Branching", "data.max_response_length=24"]
        else:
            given += ["reward.scorer=./uneven.py:score", "algorithm.filter_groups.enable=true"]
            given += [f"algorithm.rollout_correction={corrected}"]
            given += ["rollout.options.max_batch_size=1"]  # or log-probs depend on what is decoded together
        runs = {workers: train(f"of {workers}", *given, f"rollout.num_workers={workers}") for workers in (1, 2, 3)}
        assert "one process holds the tokens" not in capfd.readouterr().err
        one = numbers(runs[1])
        for workers in (2, 3):
            assert same_checkpoints(latest(runs[1]), latest(runs[workers]), FILES[:2])
            for ours, expected in zip(numbers(runs[workers]), one, strict=True):
                assert ours.keys() == expected.keys()
                for name, value in expected.items():
                    if "seconds" not in name:
                        assert ours[name] == pytest.approx(value, rel=1e-6, abs=1e-5), (ours["step"], name)
            for file in sorted((runs[1] / "rollouts").iterdir()):
                columns = ["prompt", "response", "score", "group", "token_ids", "log_probs", "advantages"]
                other = pq.read_table(runs[workers] / "rollouts" / file.name, columns=columns)
                assert other.equals(pq.read_table(file, columns=columns))
        rows = pq.read_table(file).to_pylist()
        if kind == "agent":
            assert any(row["branches"] for row in rows)
        else:
            assert one[-1]["reward/errors/exception/count"] > 0 and one[-1]["rollout_corr/rejected_fraction"] > 0

    @pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="one more run under Ray: set CORERL_CHAOS=1")
    def test_a_lost_shard_ends_the_run_with_its_name(self, train, capsys):
        """Of two shards the second ends in its estimator; the run has no restart left."""
        Path("deadly_shard.py").write_text(DEADLY_SHARD)
        began = time.monotonic()
        given = ["algorithm.adv_estimator=deadly", "actor.use_kl_loss=false", "trainer.max_restarts=0"]
        given += ["plugins.load=[deadly_shard.py]"]
        with pytest.raises(AssertionError):
            train("there", *given, "runtime.name=ray", "rollout.num_workers=2")
        said = capsys.readouterr().err.strip().splitlines()
        assert any("the batch worker 1 of 2 (process " in line and "died" in line for line in said), said
        assert time.monotonic() - began < 300

    @pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="one more run under Ray: set CORERL_CHAOS=1")
    def test_a_run_whose_process_with_the_rows_ends_starts_again(self, train, monkeypatch, capsys):
        monkeypatch.setattr(restarts, "BACKOFF", 0.0)
        Path("rows.py").write_text(DEADLY_ROWS)
        given = ["algorithm.adv_estimator=./rows.py:estimate", "actor.use_kl_loss=false", "trainer.async_save=false"]
        given += ["trainer.save_freq=1", "trainer.total_training_steps=2"]
        here = train("here", *given)
        Path("steps.left").write_text("2")
        there = train("there", *given, "runtime.name=ray", "rollout.num_workers=1")
        assert "step 2: the batch worker (process " in capsys.readouterr().err
        assert [record.pop("training/restarts", 0) for record in numbers(there)] == [0, 0, 1]
        assert same_checkpoints(latest(here), latest(there), FILES[:2])

    @pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="one more run under Ray: set CORERL_CHAOS=1")
    @pytest.mark.parametrize(
        ("given", "workers"),
        [
            (  # without a reference and a critic; the only update gives the old log-probs
                ["actor.use_kl_loss=false", "algorithm.adv_estimator=grpo", "actor.ppo_mini_batch_size=8"],
                ["runtime.options.rollout_workers=1"],
            ),
            (  # without a reference, which is two more processes
                ["actor.use_kl_loss=false"],
                ["runtime.options.rollout_workers=1", "reward.manager={name: parallel}", "reward.num_workers=2"],
            ),
            ([], ["runtime.options.ranks={critic: 3, ref: 1}", "runtime.options.apart=[critic]"]),
        ],
        ids=["one update", "alike", "uneven"],
    )
    def test_ranks_of_fsdp_under_ray_train_as_one_device_does(self, train, given, workers):
        local = train("local", *given)
        ray = ["runtime.name=ray", "runtime.options.workers=2", "actor.strategy=fsdp"]
        two = train("two", *given, *ray, *workers)
        for ours, expected in zip(numbers(two), numbers(local), strict=True):
            for name, value in expected.items():
                # which rank a row is on decides the tokens that each rank got, and nothing else
                if not name.startswith("global_seqlen/"):
                    assert ours[name] == pytest.approx(value, rel=1e-3, abs=1e-5), (ours["step"], name)
        assert_only_this_machine_can_connect(Path("listening.txt"))

    @pytest.mark.skipif("CORERL_EVERY_LAYOUT" not in os.environ, reason="one more pair of ranks: CORERL_EVERY_LAYOUT=1")
    def test_two_tensor_parallel_ranks_of_megatron_under_ray_train_as_one_device_does(self, train, material):
        pytest.importorskip("corerl_megatron")
        shape = ["--hidden-size", "16", "--layers", "2", "--heads", "2", "--kv-heads", "2"]
        corpus = str(material / "data" / "train.parquet")
        assert run(["tiny-model", "--out", "two-heads", "--corpus", corpus, *shape]) == 0
        changes = [
            "algorithm.adv_estimator=grpo",
            "actor.use_kl_loss=false",
            "trainer.total_training_steps=2",
            "trainer.val_before_train=false",
            "model.path=two-heads",
        ]
        local = numbers(train("local", *changes))
        megatron = "actor.strategy={name: megatron, tensor_model_parallel_size: 2}"
        two = numbers(train("two", *changes, "runtime.name=ray", "runtime.options.workers=2", megatron))
        for ours, expected in zip(two, local, strict=True):
            for name, value in expected.items():
                assert ours[name] == pytest.approx(value, rel=1e-3, abs=1e-5), (ours["step"], name)

    @pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="one more run under Ray: set CORERL_CHAOS=1")
    def test_two_rollout_workers_with_places_of_their_own_give_the_numbers_of_one(self, train, mortal, capsys):
        """Also where an engine of theirs ends, in generation and while weights are on their way to both."""
        changes = ["algorithm.adv_estimator=grpo", "actor.use_kl_loss=false", "trainer.total_training_steps=2"]
        local = numbers(train("local", *changes))
        own = ["runtime.name=ray", "runtime.options.rollout_workers=2", "runtime.options.weights_transport=broadcast"]
        own += [f"plugins.load=[mine.py,{mortal(Path(), {'generate': 2, 'update_weights': 4}, rank=1)}]"]
        ray = numbers(train("ray", *changes, *own, "rollout.name=mortal"))
        assert "rollout worker 1 of 2: the engine (process " in capsys.readouterr().err
        *before, last = [one.pop("rollout/restarts", 0) for one in ray]
        assert before == [0, 1] and last in (1, 2)  # 1: its background start ended after the last sending of weights
        assert {one.pop("rollout/restarts", 0) for one in local} == {0}
        assert [record.keys() for record in ray] == [record.keys() for record in local]
        for ours, expected in zip(ray, local, strict=True):
            for name, value in expected.items():
                assert ours[name] == pytest.approx(value, rel=1e-3, abs=1e-5), (ours["step"], name)

    def test_rollout_workers_of_their_own_generate_ahead_and_every_update_is_verified(self, train):
        changes = ["algorithm.adv_estimator=grpo", "actor.use_kl_loss=false", "trainer.total_training_steps=3"]
        own = ["runtime.name=ray", "runtime.options.rollout_workers=1", "runtime.options.weights_transport=broadcast"]
        records = numbers(train("ray", *changes, *own, "trainer.max_staleness=1", "rollout.verify_weights_freq=1"))
        lags = [record["training/staleness/max"] for record in records if record["step"] > 0]
        assert lags[0] == 0 and max(lags) == 1

    @pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="one more run under Ray: set CORERL_CHAOS=1")
    def test_memory_that_changes_hands_in_shared_places_changes_no_number(self, train, mortal):
        """Also where the engine ends while it is sent weights; with a reference."""
        changes = ["algorithm.adv_estimator=grpo", "trainer.total_training_steps=2"]
        plain = numbers(train("plain", *changes))
        shared = ["runtime.name=ray", "runtime.options.weights_transport=ipc", "rollout.verify_weights_freq=1"]
        shared += ["rollout.free_cache_engine=true", "trainer.offload_while_generating=true", "rollout.name=mortal"]
        shared += [f"plugins.load=[mine.py,{mortal(Path(), {'update_weights': 3})}]"]
        ended = numbers(train("shared", *changes, *shared))
        assert ended[-1].pop("rollout/restarts") == 1 and plain[-1].pop("rollout/restarts") == 0
        assert ended == plain

    @pytest.mark.parametrize("estimator", ["grpo", pytest.param("gae", marks=critic)])
    def test_numbers_and_checkpoints_are_the_same_also_after_a_worker_is_killed_and_either_resumes_the_other(
        self, train, estimator, monkeypatch, capsys
    ):
        files = FILES if estimator == "gae" else [name for name in FILES if not name.startswith("critic/")]
        monkeypatch.setattr(restarts, "BACKOFF", 0.0)
        Path("deadly.py").write_text(DEADLY)
        common = ["actor.policy_loss=deadly.py:loss", "actor.use_kl_loss=false", "trainer.async_save=false"]
        common += [f"algorithm.adv_estimator={estimator}", "trainer.save_freq=1", "trainer.test_freq=1"]
        common.append("trainer.save_huggingface=always")
        straight = train("local", *common)
        Path("updates.left").write_text("3")  # two of the first step
        ray = train("ray", *common, "trainer.total_training_steps=2", "runtime.name=ray")
        said = capsys.readouterr().err
        assert "step 2: the actor worker (process " in said
        assert f"{ray.name}/checkpoints/global_step_1 in 0 s (1 of trainer.max_restarts = 3)" in said
        lost, expected = numbers(ray), numbers(straight)
        assert [record.pop("training/restarts", 0) for record in lost] == [0, 0, 1]
        assert {record.pop("training/restarts", 0) for record in expected} == {0}
        assert lost == expected[:3]
        assert same_checkpoints(Path("own"), straight / "checkpoints" / "global_step_1", files)
        assert same_checkpoints(*(each / "checkpoints" / "global_step_2" for each in (ray, straight)), files)
        ray_then_local = train("ray", *common, f"trainer.resume_mode={ray}")
        assert numbers(ray_then_local)[-1] == numbers(straight)[-1]
        assert same_checkpoints(*map(latest, (ray_then_local, straight)), files)
