"""The rows of a step in shards, against the rows in one process; the processes are objects here."""

import pickle
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import torch

from corerl.batch.rollouts import Branch, Episode, Rollouts
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion
from corerl.contracts.rollout_correctors import NoCorrector
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import TokenOutputs
from corerl.data.prompts import Prompt
from corerl.data.tokenizer import load_tokenizer
from corerl.errors import NonFiniteError, RunError
from corerl.plugins import load_plugins
from corerl.registry.parts import resolve_parts
from corerl.rollout.scored import ScoredRollouts
from corerl.trainer.batch import Batch, make_corrector, make_guard
from corerl_ray import kept
from corerl_ray.batch import ShardedBatch, make_batch
from corerl_ray.calls import Member
from corerl_ray.host import Failure, WorkerHost
from corerl_ray.runtime import RayRuntime
from corerl_torch.shards.worker import Shard

SIZES = (3, 1, 4, 2, 2, 5)
"""responses of the groups"""
SHAPE = ModelShape(1, 1, 1)
FLOATS = """
from corerl import hookimpl

@hookimpl
def step_metrics(experience, results):
    failed = sum(r.score is None for r in results)
    return {"acme/spread": experience.rewards.sum(1).std(), "acme/failed": failed} if failed else {}
"""
"""some shards have no failed response, and no number; one number is a tensor"""


def draw(seed: int, branches: bool = False) -> ScoredRollouts:
    """A step of uneven groups; some responses have no score."""
    random = torch.Generator().manual_seed(seed)

    def number(most: int) -> int:
        return int(torch.randint(1, most + 1, (), generator=random))

    def completion(tokens: int) -> Completion:
        ids = torch.randint(97, 120, (tokens,), generator=random).tolist()
        return Completion(ids, (-2 * torch.rand(tokens, generator=random)).tolist(), "stop", 3)

    prompts, completions, results, groups, episodes = [], [], [], [], []
    for group, size in enumerate(SIZES):
        own = Prompt(group, tuple(range(97, 97 + number(5))), [{"role": "user", "content": "a"}], "acme/sums", "4", {})
        for _ in range(size):
            prompts, groups = [*prompts, own], [*groups, group]
            completions.append(completion(number(40)))
            failed = number(6) == 1
            results.append(RewardResult(None, error="x", error_kind=f"kind {number(2)}") if failed else scored(number))
            tokens = len(completions[-1].token_ids)
            further = [completion(number(30)) for _ in range(number(3) - 1)] if group in (0, 3) else []
            rows = [Branch((97,), each, [True] * len(each.token_ids), [2] * len(each.token_ids)) for each in further]
            mask = [place % 3 != 1 for place in range(tokens)]
            turn_ids = [1 if trained else -1 for trained in mask]
            episodes.append(Episode(mask, turn_ids=turn_ids, branches=rows))
    texts = [f"text {row}" for row in range(len(prompts))]
    return ScoredRollouts(Rollouts(prompts, completions, texts, groups, episodes if branches else None), results)


def scored(number) -> RewardResult:
    return RewardResult(number(9) / 7, {"format": float(number(2))} if number(2) == 1 else {})


class Store(dict):
    """The object store."""

    def put(self, value):
        reference = f"object {len(self)}"
        self[reference] = value
        return reference

    def get(self, references):
        return self[references] if isinstance(references, str) else [self[each] for each in references]


class Host:
    """The process of a shard."""

    def __init__(self, worker, store):
        host = WorkerHost.__new__(WorkerHost)
        host.worker = worker

        def sent(name, keywords, args):
            given = [store[each] if isinstance(each, str) and each in store else each for each in args]
            return pickle.loads(pickle.dumps((name, keywords, given)))

        def call(name, keywords, *args):
            name, keywords, args = sent(name, keywords, args)
            return store.put(host.call(name, keywords, *args))

        def keep(name, keywords, *args):
            name, keywords, args = sent(name, keywords, args)
            known, value = host.keep(name, keywords, *args)
            return store.put(known), store.put(pickle.loads(pickle.dumps(value)))

        self.call = SimpleNamespace(remote=call)
        self.keep = SimpleNamespace(options=lambda num_returns: SimpleNamespace(remote=keep))


@pytest.fixture
def made(tmp_path, tiny_tokenizer_dir, monkeypatch):
    """``made(shards, **keys)``: the same batch in one process and in shards."""
    store = Store()
    monkeypatch.setattr(kept, "ray", SimpleNamespace(get=store.get))

    def wait(calls, deadline, what):
        results = store.get([each.reference for each in calls])
        raised = [each.error("a shard") if isinstance(each, Failure) else each for each in results]
        for each in raised:
            if isinstance(each, RunError) and not isinstance(each, NonFiniteError):
                raise each
        return raised

    def make(shards, plugins=(), **keys):
        config = TrainConfig(ModelConfig(str(tiny_tokenizer_dir)))
        config.algorithm.adv_estimator = keys.pop("estimator", "grpo")
        config.plugins.load = [*plugins]
        config.actor.device, config.trainer.on_nonfinite = "cpu", keys.pop("on_nonfinite", "skip")
        config.trainer.log_rollouts_tokens = keys.pop("token_rows", 5)
        for name, value in keys.items():
            setattr(config.algorithm.rollout_correction, name, value)
        loaded = load_plugins(tuple(plugins), ())
        estimator = resolve_parts(config, loaded.registries).adv_estimator.load()
        corrector = make_corrector(config, loaded.hook, SHAPE)
        guard = make_guard(config, tmp_path / "one", loaded.hook)
        whole = Batch(config, loaded.hook, load_tokenizer(config.model, loaded), estimator, corrector, guard)
        members = []
        for rank in range(shards):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(shards))
            members.append(Member("batch", rank, shards, Host(Shard(config, tmp_path / "many", SHAPE), store)))
        group = SimpleNamespace(role="batch", members=members, waiter=SimpleNamespace(wait=wait), timeout=60.0)
        return whole, ShardedBatch(group, corrector, config.trainer.log_rollouts_tokens), store

    return make


def outputs(seed, scored, width, store):
    """Log-probs near those of the engine, as one process has them and as the ranks of a model keep them."""
    experience = scored.experience(width)
    noise = torch.randn(experience.response_mask.shape, generator=torch.Generator().manual_seed(seed))
    noise = torch.where(torch.arange(width) < experience.response_lengths[:, None], noise, 0.0)
    given = TokenOutputs(log_probs=experience.rollout_log_probs + 0.3 * noise, entropy=noise.abs())
    rows = [torch.arange(len(experience))[rank::3] for rank in range(3)]
    parts = [TokenOutputs(log_probs=given.log_probs[own], entropy=given.entropy[own]) for own in rows]
    references = [store.put(each) for each in parts]
    of_ranks = kept.KeptOutputs(references, torch.cat(rows), [len(own) for own in rows], (len(experience), width))
    return given, of_ranks


def same_rows(handle, expected):
    """The rows of a handle, read by a rank, are these; and its numbers."""
    for rows in (torch.arange(len(expected)), torch.randperm(len(expected))[: len(expected) // 2]):
        found, wanted = kept.KeptShare.of(handle.select(rows), torch.arange(len(rows))).value(), expected.select(rows)
        assert found.tensors().keys() == wanted.tensors().keys()
        for name, tensor in wanted.tensors().items():
            assert torch.equal(getattr(found, name), tensor), name
    same_numbers(handle.numbers(), expected.numbers())


def same_numbers(found, wanted):
    for name in ("lengths", "response_lengths", "group_ids", "trained", "has_advantage"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
    assert wanted.episode_ids is None or torch.equal(found.episode_ids, wanted.episode_ids)


CORRECTED = {"rollout_is": "geometric", "rollout_rs": "token_k1", "rollout_rs_threshold": 1.3, "max_log_prob_diff": 9.0}


@pytest.mark.parametrize("branches", [False, True], ids=["one row each", "branches"])
@pytest.mark.parametrize("shards", [1, 3, 9])
def test_shards_compute_what_one_process_does(made, tmp_path, shards, branches, capsys):
    """Two steps; rows bit for bit, and metrics up to the order of their sums."""
    whole, batch, store = made(shards, estimator="opo", **CORRECTED)
    for seed in (1, 2):
        step = draw(seed, branches)
        tokens, handle = whole.take(step), batch.take(step)
        expected = tokens if whole.experience.episode_ids is None else whole.experience
        same_numbers(handle.numbers(), expected.numbers())
        assert torch.equal(kept.KeptShare.of(handle, torch.arange(len(tokens))).value().input_ids, tokens.input_ids)
        assert len(batch._cut.parts) == min(shards, len(SIZES)) or shards == 9
        for role in ("actor", "ref"):
            given, of_ranks = outputs(seed, step, tokens.response_mask.shape[1], store)
            if role == "ref" and seed == 2:
                bad = next(row for row in range(7, len(step)) if whole.experience.response_mask[row, 0])
                given.log_probs[bad, 0] = store[of_ranks.references[bad % 3]].log_probs[bad // 3, 0] = torch.nan
            whole.put(role, given), batch.put(role, of_ranks)
        same_numbers(batch.estimate(seed, 0), whole.estimate(seed, 0))
        metrics = whole.measure()
        assert batch.measure() == pytest.approx(metrics, rel=1e-6, abs=1e-7)
        assert metrics["training/nonfinite_samples"] == seed - 1 and 0 < metrics["rollout_corr/rejected_fraction"] < 1
        assert any(name.startswith("reward/errors/kind") for name in metrics)
        same_rows(batch.rows(), whole.rows())
        same_rows(batch.correct(drops=True), whole.correct(drops=True))
        for each, folder in ((whole, "one"), (batch, "many")):
            assert each.write_rollouts(tmp_path / folder / f"step_00000{seed}.parquet") is None
        one, many = (pq.read_table(tmp_path / folder / f"step_00000{seed}.parquet") for folder in ("one", "many"))
        assert many.equals(one)
        whole.end(), batch.end()
    lines = [line.partition(" are saved in ")[0] for line in capsys.readouterr().err.splitlines()]
    assert len(lines) == 2 and lines[0] == lines[1] and f"(response {bad} to prompt " in lines[0]


def test_rows_of_an_update_are_saved_by_their_shards_and_named_by_their_numbers_in_the_step(made, tmp_path, capsys):
    _, batch, _ = made(2)
    batch.take(draw(1))
    batch.refuse(7, NonFiniteError("loss is nan"), [1, 16])
    first, second = capsys.readouterr().err.splitlines()
    assert "step 7: loss is nan; 1 samples (response 1 to prompt 0 of 'acme/sums')" in first
    assert "(response 16 to prompt 5 of 'acme/sums')" in second
    saved = sorted(str(path.relative_to(tmp_path / "many")) for path in (tmp_path / "many").rglob("step_*"))
    assert saved == ["nonfinite/shard_0/step_000007", "nonfinite/shard_1/step_000007"]
    batch.refuse(8, NonFiniteError("loss is nan"), [0])
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_sample_that_is_not_finite_ends_the_run_with_its_number_in_the_step(made):
    _, batch, _ = made(2, on_nonfinite="raise")
    step = draw(1)
    batch.take(step)
    step.rollouts.completions[16].log_probs[0] = float("nan")
    batch.take(step)
    with pytest.raises(NonFiniteError, match=r"response 16 to prompt 5") as caught:
        batch.estimate(1, 0)
    assert list(caught.value.rows) == [16]


@pytest.mark.parametrize("most", [0.2, 0.3])
def test_engine_and_trainer_are_compared_by_the_mean_of_the_step(made, most):
    """Of all tokens, 0.24; of the first shard more than 0.3, and of the second less than 0.2."""
    whole, batch, store = made(2, max_log_prob_diff=most)
    step = draw(1)
    whole.take(step), batch.take(step)
    first, rows = int((whole.experience.group_ids < 3).sum()), torch.arange(len(step))
    given = TokenOutputs(log_probs=whole.experience.rollout_log_probs + 0.12)
    given.log_probs[:first] += 0.24
    of_ranks = kept.KeptOutputs([store.put(given)], rows, [len(rows)], tuple(given.log_probs.shape))
    whole.put("actor", given), batch.put("actor", of_ranks)
    found = []
    for each in (whole, batch):
        try:
            each.estimate(1, 0)
            found.append("")
        except RunError as error:
            found.append(str(error))
    assert found[0] == found[1] and bool(found[0]) == (most == 0.2)


def test_a_plugin_with_a_float_gets_the_whole_step_and_later_steps_are_in_one_process(made, tmp_path, capsys):
    (tmp_path / "floats.py").write_text(FLOATS)
    whole, batch, store = made(3, plugins=[str(tmp_path / "floats.py")], **CORRECTED)
    for seed, shards in ((1, 3), (2, 1)):
        step = draw(seed, branches=True)
        tokens = whole.take(step)
        batch.take(step)
        assert len(batch._cut.parts) == shards
        given, of_ranks = outputs(seed, step, tokens.response_mask.shape[1], store)
        whole.put("actor", given), batch.put("actor", of_ranks)
        whole.estimate(seed, 0), batch.estimate(seed, 0)
        measuring = batch.measure.submit()
        batch.correct(drops=False)  # begun before the metrics are read
        assert measuring.result() == pytest.approx(expected := whole.measure(), rel=1e-6, abs=1e-7)
        assert expected["acme/failed"] > 0
        batch.end(), whole.end()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("one process holds the tokens of each further step: a plugin's step_metrics gives acme/")


def test_without_responses_to_write_with_tokens_all_texts_are_written(made, tmp_path):
    _, batch, _ = made(2, token_rows=0)
    batch.take(step := draw(1))
    assert batch.write_rollouts(tmp_path / "step_000001.parquet") is None
    assert pq.read_table(tmp_path / "step_000001.parquet")["response"].to_pylist() == step.rollouts.responses


class Spawning(RayRuntime):
    """Records the role that it would start."""

    def __init__(self):
        self.roles = []

    def spawn(self, role, worker, *args):
        self.roles.append(role)
        return SimpleNamespace(members=[None] * role.workers)


@pytest.mark.parametrize(
    ("estimator", "keys", "shards", "said"),
    [
        ("grpo", {"num_workers": 3}, 3, ""),
        ("grpo", {"num_workers": 64}, 16, ""),
        ("grpo", {"num_workers": 64, "train_batch_size": 5}, 5, ""),
        ("gdpo", {"num_workers": 3}, 1, "one process holds the tokens of each step: algorithm.adv_estimator=gdpo\n"),
        ("gdpo", {"num_workers": 1}, 1, ""),
        (
            "grpo",
            {"num_workers": 3, "kl_penalty": True},
            None,
            "the controller holds the tokens of each step: algorithm.use_kl_in_reward\n",
        ),
    ],
)
def test_a_run_has_as_many_shards_as_workers_and_fewer_by_its_parts(estimator, keys, shards, said, capsys):
    entry = load_plugins().registries.advantage_estimators.get(estimator)
    config = TrainConfig(ModelConfig("m"))
    config.rollout.num_workers = keys["num_workers"]
    config.data.train_batch_size = keys.get("train_batch_size", 512)
    parts = SimpleNamespace(
        adv_estimator=SimpleNamespace(entry=entry),
        kl_penalty=keys.get("kl_penalty"),
        policy_loss=SimpleNamespace(load_fact=lambda name: None),
    )
    runtime, plan = Spawning(), SimpleNamespace(config=config, parts=parts)
    given = Path("run"), SimpleNamespace(shape=SHAPE), NoCorrector(), []
    batch = make_batch(plan, runtime, *given)
    assert [role.workers for role in runtime.roles] == ([] if shards is None else [shards])
    assert (batch is None) == (shards is None) and capsys.readouterr().err == said
    assert make_batch(plan, SimpleNamespace(), *given) is None
