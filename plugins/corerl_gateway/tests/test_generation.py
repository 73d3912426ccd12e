"""``corerl generate`` from ``corerl serve``: greedy responses are those of the engine in the own process."""

import json
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corerl.cli.main import run
from corerl_testing.tiny_model import tiny_model

pytestmark = pytest.mark.xdist_group("corerl serve")
AGENT = """
from corerl.contracts.agents import AgentResult


async def twice(task, model):
    chat = list(task.messages)
    for _ in range(2):
        reply = await model.chat(chat, max_tokens=6)
        chat += [reply.message, {"role": "user", "content": "Again."}]
    return AgentResult(1.0, messages=chat)
"""


@pytest.fixture(scope="module")
def generate(tmp_path_factory):
    """The rows of ``corerl generate`` with these words."""
    folder = tmp_path_factory.mktemp("generate")
    (folder / "agent.py").write_text(AGENT)
    rows = [
        {
            "data_source": "acme",
            "prompt": [{"role": "user", "content": f"Hello {number}!"}],
            "reward_model": {"style": "rule", "ground_truth": "1"},
        }
        for number in range(4)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "data.parquet")

    def make(*words, model=None, status=0, keep=False):
        file = folder / "out.parquet"
        if not keep:
            file.unlink(missing_ok=True)
            shutil.rmtree(folder / "out.parquet.parts", ignore_errors=True)
        sizes = ["data.max_prompt_length=64", "data.max_response_length=40", "actor.device=cpu"]
        data = ["--data", str(folder / "data.parquet"), "--out", str(file)]
        assert run(["generate", "--model", model or str(tiny_model()), *data, *sizes, *words]) == status
        return pq.read_table(file).to_pylist() if not status else []

    make.agent = f"rollout.agent={folder / 'agent.py'}:twice"
    return make


def at(url, name="remote"):
    return [f"rollout.name={name}", f"rollout.options.url={url}"]


def test_tokens_over_http_are_those_of_the_own_process(generate, served):
    words = ["--greedy", "--log-probs"]
    here, there = generate(*words), generate(*words, *at(served))
    assert [row["token_ids"] for row in here] == [row["token_ids"] for row in there]
    for one, other in zip(here, there, strict=True):
        assert other["log_probs"] == pytest.approx(one["log_probs"], abs=1e-4)
        assert one["response"] == other["response"] and one["finish_reason"] == other["finish_reason"]


def test_episodes_over_http_are_those_of_the_own_process(generate, served):
    words = ["--greedy", "--log-probs", generate.agent]
    here, there = generate(*words), generate(*words, *at(served))
    for name in ("token_ids", "response_mask", "episode", "response", "turn_runs", "environment_error"):
        assert [row[name] for row in here] == [row[name] for row in there]
    assert {len(json.loads(row["requests"])) for row in there} == {2}


def test_chats_over_http_are_those_of_the_own_process(generate, served):
    here = generate("--greedy")
    for words in ([], ["rollout.agent=chat"]):
        there = generate("--greedy", *at(served, "openai"), *words, model="openai:tiny")
        assert [row["response"] for row in here] == [row["response"] for row in there]


def test_samples_differ_and_repeat(generate, served):
    words = ["--n", "3", *at(served), "rollout.top_k=50"]
    first, again = generate(*words), generate(*words)
    assert len({row["response"] for row in first[:3]}) == 3
    assert [row["response"] for row in first] == [row["response"] for row in again]


ERRORS = {
    "a wrong key": (["rollout.options.api_key=${env:WRONG}"], 1, r"refuses the key \(status 401\)"),
    "no variable": (["rollout.options.api_key=${env:NOWHERE}"], 2, "variable NOWHERE is not set"),
    "a plain key": (["rollout.options.api_key=sk-0123456789abcdef"], 2, "looks like a secret"),
    "an unknown host": (["rollout.options.url=http://nowhere.invalid/v1"], 1, "the connection to .* failed"),
    "another path": (["rollout.options.url={url}/x"], 1, "is not there"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_have_one_line(generate, served, monkeypatch, capfd, name):
    monkeypatch.setenv("WRONG", "sk-wrong-0123456789")
    words, status, expected = ERRORS[name]
    words = [word.replace("{url}", served) for word in words]
    generate(*at(served), *words, status=status)
    printed = "".join(capfd.readouterr())
    assert re.search(expected, printed) and "sk-" not in printed and "Traceback" not in printed


def test_a_file_has_the_responses_of_one_server(generate, served, capfd):
    generate(*at(served))
    generate(*at(served.replace("127.0.0.1", "localhost")), status=2, keep=True)
    assert "made with another server" in "".join(capfd.readouterr())


def test_training_from_a_server_is_refused_in_one_line(tmp_path, capfd, served):
    config = tmp_path / "config.yaml"
    config.write_text(f"model: {{path: {tiny_model()}}}\ndata: {{train_files: [x.parquet]}}\n")
    for command in ("check", "train"):
        assert run([command, str(config), *at(served)]) != 0
        assert "rollout.name: 'remote' asks the model of another server" in "".join(capfd.readouterr())
