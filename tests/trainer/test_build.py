"""From a plan to a trainer: which roles there are, who gives memory back, which checkpoints are kept."""

import dataclasses
from types import SimpleNamespace
from typing import ClassVar

import pytest

from corerl.checkpoint.branch import Branch
from corerl.checkpoint.resume import Checkpoint
from corerl.contracts.config import TrainConfig
from corerl.contracts.facts import BackendFacts, StrategyFacts
from corerl.contracts.runtimes import Pool, Role
from corerl.contracts.throughput import ModelShape
from corerl.errors import ConfigError, EngineDeadError, RunError
from corerl.plugins import load_plugins
from corerl.registry import Entry, Owner, Selected
from corerl.telemetry.metrics_log import read_metrics
from corerl.trainer import build
from corerl.trainer.run import Run
from corerl_testing.tiny_model import tiny_model
from corerl_torch.kl_penalty import make_kl_penalty


@pytest.fixture
def made(made_up):
    return made_up()


def selected(kind, name, target=None, **facts):
    return Selected(Entry(kind, name, target, Owner("acme", "1"), **facts))


def test_every_role_runs_the_part_that_its_key_selects(made):
    strategy = selected("training strategy", "wide", facts=StrategyFacts(distributed=True))
    parts = dataclasses.replace(made.parts, strategy=strategy)
    assert list(build._roles(made.config, parts).values()) == [
        Role("actor", "actor.strategy", "wide", True),
        Role("critic", "critic.strategy", "wide", True),
        Role("ref", "ref.strategy", "wide", True),
        Role("rollout", "rollout.name", "mine", True),
    ]
    parts = dataclasses.replace(parts, critic_strategy=selected("training strategy", "narrow", facts=StrategyFacts()))
    assert build._roles(made.config, parts)["critic"] == Role("critic", "critic.strategy", "narrow", False)


def test_an_engine_whose_memory_does_not_depend_on_the_models_starts_beside_them(made):
    backend = selected("rollout backend", "mine", facts=BackendFacts(starts_beside_models=True))
    assert not build._roles(made.config, made.parts)["rollout"].starts_beside
    assert build._roles(made.config, dataclasses.replace(made.parts, rollout_backend=backend))["rollout"].starts_beside


def test_engines_have_the_gpus_of_their_tensor_parallelism_and_a_pool_where_they_have_machines(made):
    made.config.rollout.tensor_model_parallel_size = 2
    entry = made.parts.rollout_backend.entry
    assert build.rollout_role(made.config, entry) == Role("rollout", "rollout.name", "mine", True, gpus=2)
    made.config.rollout.nnodes, made.config.rollout.n_gpus_per_node = 3, 4
    assert build.rollout_role(made.config, entry).pool == Pool(3, 4)


@pytest.mark.parametrize(
    ("device", "own_gpus", "staleness", "asked", "freed"),
    [
        ("cuda", 0, 0, None, True),
        ("cpu", 0, 0, None, False),
        ("cuda", 2, 0, None, False),
        ("cuda", 0, 1, None, False),
        ("cuda", 0, 0, False, False),
        ("cpu", 2, 1, True, True),
    ],
)
def test_the_engine_gives_memory_back_by_default_where_training_could_use_it(
    made, monkeypatch, device, own_gpus, staleness, asked, freed
):
    monkeypatch.setattr(build, "resolve_device", lambda _: device)
    made.config.rollout.n_gpus_per_node, made.config.rollout.free_cache_engine = own_gpus, asked
    made.config.trainer.max_staleness = staleness
    calls = []
    engine = SimpleNamespace(sleep=lambda: calls.append("sleep"))
    role = SimpleNamespace(onload=lambda: calls.append("onload"))
    build._device_sharing(made.config, engine, [role]).to_training()
    assert calls == ["sleep"] * freed
    made.config.trainer.offload_while_generating = True
    build._device_sharing(made.config, engine, [role]).to_training()
    assert calls[freed:] == ["sleep"] * freed + ["onload"]


def test_checkpoints_are_kept_as_the_config_says(made, tmp_path):
    new, trainer, run = plan(made), made.config.trainer, Run(made.config, made.parts, made.plugins, tmp_path)
    new.tokenizer = SimpleNamespace(model_files=lambda: {"config.json": b"{}"})
    trainer.max_ckpt_to_keep, trainer.save_timeout = 2, 7.0
    store = build._checkpoint_store(run, new)
    assert (store.folder, store.timeout, store._max_to_keep) == (tmp_path / "checkpoints", 7.0, 2)
    assert store._model_files == {"config.json": b"{}"}
    trainer.keep_best, trainer.keep_best_mode = "val", "min"
    assert build._checkpoint_store(run, new)._branch == Branch("min", {})
    new.checkpoint = checkpoint(tmp_path, scores={3: 0.5})
    assert build._checkpoint_store(run, new)._branch == Branch("min", {3: 0.5})


def plan(made, checkpoint=None, **parts):
    return SimpleNamespace(
        config=made.config,
        parts=dataclasses.replace(made.parts, **parts),
        checkpoint=checkpoint,
        total_steps=9,
        folder=None,
        run_ids={},
    )


def checkpoint(tmp_path, **state):
    given = {"step": 4, "sampler": {}, "kl_coef": None, "trackers": {}, "config": {}, "versions": {}, **state}
    return Checkpoint(tmp_path, **given)


def difference(policy, reference):
    return policy - reference


@pytest.mark.parametrize(("saved", "coefficient"), [("none", 0.25), (None, 0.25), (0.0, 0.0), (0.75, 0.75)])
def test_the_kl_penalty_begins_with_the_configs_coefficient_or_the_checkpoints(made, tmp_path, saved, coefficient):
    made.config.algorithm.kl_ctrl.kl_coef, made.config.actor.ppo_mini_batch_size = 0.25, 6
    made_plan = plan(
        made,
        None if saved == "none" else checkpoint(tmp_path, kl_coef=saved),
        kl_penalty=selected("KL type", "difference", difference),
        kl_controller=selected("KL controller", "fixed", max),
    )
    penalty = make_kl_penalty(made_plan, "the models")
    assert (penalty.kl_type, penalty.controller, penalty.models) == (difference, max, "the models")
    assert (penalty.coef, penalty.mini_batch_size, penalty.reference) == (coefficient, 6, None)


def test_a_kl_type_may_need_the_vocabulary(made):
    full = selected("KL type", "full", difference, needs=frozenset({"logits"}))
    controller = selected("KL controller", "fixed", max)
    models = SimpleNamespace(reference="the reference", shape=ModelShape(1, 1, 1, vocabulary=3))
    penalty = make_kl_penalty(plan(made, kl_penalty=full, kl_controller=controller), models)
    assert (penalty.reference.reference, penalty.reference.vocabulary) == ("the reference", 3)


class Tracker:
    opened: ClassVar = []

    def __init__(self, run):
        Tracker.opened.append(run)
        self.run_id = f"{run.run_id or 'new'}+"

    def log(self, metrics, step):
        pass

    def close(self):
        pass


@pytest.mark.parametrize("resumed", [False, True])
def test_trackers_get_the_run_and_two_of_a_kind_have_two_names(made, tmp_path, resumed):
    Tracker.opened.clear()
    tracker = selected("tracker", "abacus", Tracker)
    made.parts = dataclasses.replace(made.parts, trackers=(tracker, tracker))
    run = Run(made.config, made.parts, made.plugins, tmp_path)
    made.config.tracking.project_name, made.config.tracking.experiment_name = "sums", "first"
    (tmp_path / "metrics.jsonl").write_text('{"step": 4, "a": 1.0}\n{"step": 5, "a": 2.0}\n')
    found = checkpoint(tmp_path, trackers={"abacus 1": "xyz"}) if resumed else None
    with build._open_log(run, plan(made, found)) as log:
        log.write({"a": 3.0}, 6)
    steps = [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")]
    assert steps == ([4, 6] if resumed else [6])
    assert sorted(each.run_id for each in Tracker.opened) == (["", "xyz"] if resumed else ["", ""])
    assert log.state() == {"abacus": "new+", "abacus 1": "xyz+" if resumed else "new+"}
    told = Tracker.opened[0]
    assert (told.project_name, told.experiment_name, told.folder) == ("sums", "first", tmp_path)
    assert (told.total_steps, told.resumed_from) == (9, 4 if resumed else None)
    assert told.config["tracking"]["project_name"] == "sums"


@pytest.mark.parametrize("error", [None, RunError("the server is gone"), KeyboardInterrupt()])
def test_hooks_run_at_the_begin_and_at_the_end_with_its_error(monkeypatch, error):
    calls = []

    def fit(trainer):
        calls.append("fit")
        if error is not None:
            raise error

    monkeypatch.setattr(build, "fit", fit)
    hook = SimpleNamespace(
        run_started=lambda run: calls.append("started"), run_ended=lambda run, error: calls.append(error)
    )
    trainer = SimpleNamespace(run=SimpleNamespace(plugins=SimpleNamespace(hook=hook)))
    if error is None:
        build._fit(trainer)
    else:
        with pytest.raises(type(error)):
            build._fit(trainer)
    assert calls == ["started", "fit", error]


WORKPLACE = """
def score(response, ground_truth, data_source, extra_info):
    return float(len(response) % 2)
"""


@pytest.fixture
def real_plan(tmp_path):
    """``real_plan(section__key=value, …)``: of two steps of the tiny model, with the defaults for CPUs."""
    for plugin in ("corerl_hf", "corerl_fsdp", "corerl_grpo", "corerl_ppo", "corerl_rewards"):
        pytest.importorskip(plugin)
    import pyarrow as pa
    import pyarrow.parquet as pq

    from corerl.contracts.config import ModelConfig
    from corerl.registry.parts import resolve_parts
    from corerl.trainer.plan import make_plan

    (tmp_path / "reward.py").write_text(WORKPLACE)
    rows = [
        {"data_source": "s", "prompt": [{"role": "user", "content": f"{n}"}], "reward_model": {"ground_truth": "1"}}
        for n in range(4)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")

    def make(**keys):
        config = TrainConfig(ModelConfig(str(tiny_model()), dtype="fp32"))
        config.data.train_files, config.data.train_batch_size = [str(tmp_path / "train.parquet")], 2
        config.data.max_response_length, config.rollout.n, config.actor.device = 4, 2, "cpu"
        config.actor.ppo_mini_batch_size, config.trainer.output_dir = 2, str(tmp_path / "runs")
        config.reward.scorer, config.reward.manager = f"{tmp_path}/reward.py:score", "naive"
        config.tracking.loggers = []
        for key, value in keys.items():
            section, _, name = key.rpartition("__")
            target = config
            for each in section.split("__"):
                target = getattr(target, each)
            setattr(target, name, value)
        plugins = load_plugins((), ())
        return make_plan(config, resolve_parts(config, plugins.registries), plugins)

    return make


def test_a_run_has_the_roles_that_its_algorithm_needs_and_ends_with_its_folder(real_plan, capsys):
    folder = build.train(real_plan(trainer__max_staleness=1))
    started = [line for line in capsys.readouterr().err.splitlines() if line.startswith("starting ")]
    assert started == ["starting actor: torch", "starting rollout: hf"]
    records = read_metrics(folder / "metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2]
    assert {"rollout_corr/rollout_is_mean", "rollout_corr/rejected_fraction"} <= set(records[0])


def test_a_trainer_is_what_the_plan_says_and_its_parts_end_with_it(real_plan, monkeypatch):
    trainers, asked = [], []

    def fit(trainer):
        trainer.devices.to_training()
        trainers.append(trainer)

    monkeypatch.setattr(build, "fit", fit)
    monkeypatch.setattr(build, "cpu_threads", lambda threads, device: asked.append(device) or threads)
    keys = {"actor__use_kl_loss": True, "trainer__offload_while_generating": True}
    folder = build.train(real_plan(**keys, trainer__max_staleness=1, trainer__on_nonfinite="skip"))
    [trainer] = trainers
    assert trainer.models.reference is not None and trainer.models.critic is None and trainer.evaluation is None
    assert (trainer.batch.guard.folder, trainer.batch.guard.skip) == (folder / "nonfinite", True)
    assert asked == []  # all is on the CPU
    with pytest.raises(RuntimeError, match="is closed"):
        trainer.stream.take(1)
    with pytest.raises(EngineDeadError, match="as it was"):
        trainer.engines._restart(EngineDeadError("as it was"))


def test_a_critic_a_reference_and_a_penalty_are_there_when_they_are_asked_for(real_plan, capsys):
    folder = build.train(
        real_plan(
            algorithm__adv_estimator="gae",
            algorithm__use_kl_in_reward=True,
            actor__use_kl_loss=True,
            actor__kl_loss_type="full",
        )
    )
    started = [line for line in capsys.readouterr().err.splitlines() if line.startswith("starting ")]
    assert started == [f"starting {role}: torch" for role in ("actor", "critic", "ref")] + ["starting rollout: hf"]
    first = read_metrics(folder / "metrics.jsonl")[0]
    assert {"critic/vf_loss", "actor/reward_kl_penalty", "actor/kl_loss"} <= set(first)
    assert first["actor/kl_loss"] == pytest.approx(0, abs=1e-5)
    assert {path.name for path in (folder / "checkpoints" / "global_step_2").iterdir()} >= {"actor", "critic"}


def test_a_resumed_run_goes_on_in_its_folder_bit_for_bit(real_plan):
    keys = {"trainer__total_training_steps": 2, "algorithm__adv_estimator": "gae"}
    straight = build.train(real_plan(tracking__experiment_name="straight", **keys))
    first = build.train(real_plan(**{**keys, "trainer__total_training_steps": 1}))
    again = build.train(real_plan(**keys))
    assert again == first
    values = [
        {name: value for name, value in record.items() if not name.startswith(("timing", "perf/"))}
        for folder in (straight, again)
        for record in read_metrics(folder / "metrics.jsonl")
    ]
    assert values[:2] == values[2:]


def test_what_local_cannot_do_is_refused_before_anything_is_written(real_plan, tmp_path):
    made = real_plan()
    made.config.runtime.nnodes = 2
    with pytest.raises(ConfigError, match=r"runtime\.nnodes"):
        build.train(made)
    assert not (tmp_path / "runs").exists()
