"""Unmodified clients, each a process in .venv-clients, drive episodes whose record holds the policy's very tokens."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from gateway_toys import Recording, Script, read_by, read_text, serving

from corerl_testing.agents import TEMPLATE
from corerl_testing.tiny_model import write_byte_tokenizer

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
FOLDER = Path(__file__).parent / "clients"
CALLS = (
    'Let me see.<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    '<tool_call>{"name": "add", "arguments": {"b": 5, "a": 4}}</tool_call>'
)
END = "Fünf 🎉, and 9."
"""its characters are of one to four tokens"""
SECONDS = 60

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="the clients are not installed: make clients")


def play(tmp_path, script, *names, texts=(CALLS, END), arguments=()):
    """(results, name -> recording) of a client's program."""
    models = {name: Recording(Script(*texts), 100_000) for name in names}

    async def main():
        async with serving(*models.values()) as (_, addresses):
            episodes = {
                name: {"base_url": address.base_url, "api_key": address.api_key}
                for name, address in zip(models, addresses, strict=True)
            }
            kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
            own = {"HOME": str(tmp_path), "EPISODES": json.dumps(episodes), "NO_PROXY": "*"}
            program = await asyncio.create_subprocess_exec(
                PYTHON, FOLDER / script, *arguments, env=kept | own, cwd=tmp_path, stdout=-1, stderr=-1
            )
            try:
                return await asyncio.wait_for(program.communicate(), SECONDS), program.returncode
            finally:
                if program.returncode is None:
                    program.kill()
                    await program.wait()

    (printed, errors), code = asyncio.run(main())
    assert code == 0, errors.decode()[-3000:]
    [line] = [line for line in printed.decode().splitlines() if line.startswith("RESULTS ")]
    for model in models.values():
        model.check()
    return json.loads(line.removeprefix("RESULTS ")), models


def check_two_turns(results, models, *names):
    """Parallel calls, then an answer: two requests, of which the second continues the first."""
    for name in names:
        assert results[name] == END, name
        nodes = models[name].nodes
        assert len(nodes) == 2 and nodes[1].parent is nodes[0], name
        assert read_text(nodes[1]) == b"\ntool\n2 + 3 = 5\ntool\n4 + 5 = 9\nassistant\n", name


def test_openai(tmp_path):
    names = ["chat", "chat_stream", "responses", "responses_stream"]
    results, models = play(tmp_path, "openai_client.py", *names, "branches", "hundred", "errors")
    check_two_turns(results, models, *names)
    assert results["branches"] == [3, "length", len(END.encode()) + 1]
    branches = models["branches"]
    assert [node.parent for node in branches.nodes[:5]] == [None] * 5
    assert branches.nodes[5].parent is branches.nodes[0] and branches.nodes[6].parent is None
    assert results["hundred"] == 200 and len(models["hundred"].leaves) == 1
    assert len(models["hundred"].nodes) == 100
    assert results["errors"] == ["response_format.type", "episode_not_found", "tiny"]


def test_anthropic(tmp_path):
    results, models = play(tmp_path, "anthropic_client.py", "chat", "chat_stream", "errors")
    check_two_turns(results, models, "chat", "chat_stream")
    assert results["errors"][0] == "invalid_request_error" and results["errors"][2] == "tiny"


def test_openai_agents_and_a_server_of_the_mcp_sdk(tmp_path):
    names = ["chat", "chat_stream", "responses", "responses_stream", "mcp"]
    check_two_turns(*play(tmp_path, "openai_agents_client.py", *names), *names)


@pytest.mark.skipif("CORERL_EVERY_TWIN" not in os.environ, reason="15 s, one more client: CORERL_EVERY_TWIN=1")
def test_litellm(tmp_path):
    names = ["chat", "chat_stream", "messages"]
    check_two_turns(*play(tmp_path, "litellm_client.py", *names), *names)


def test_pydantic_ai(tmp_path):
    names = ["chat", "chat_stream", "responses"]
    check_two_turns(*play(tmp_path, "pydantic_ai_client.py", *names), *names)


def test_langchain(tmp_path):
    names = ["chat", "chat_stream", "responses"]
    check_two_turns(*play(tmp_path, "langchain_client.py", *names), *names)


def test_the_training_client_of_verifiers(tmp_path):
    write_byte_tokenizer(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen2"}')
    results, models = play(tmp_path, "verifiers_client.py", "tokens", texts=(END,), arguments=[str(tmp_path / "model")])
    nodes = models["tokens"].nodes
    assert [turn[:3] for turn in results["turns"]] == [
        [list(read_by(node)), list(node.turn.token_ids), list(node.turn.log_probs)] for node in nodes
    ]
    assert [turn[3] for turn in results["turns"]] == ["stop", "length"] and nodes[1].parent is nodes[0]


def tool_tokenizer(folder):
    """The tokenizer in ``folder``, from now on with markers of tool calls as tokens, as Qwen has them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer


@pytest.mark.skipif("CORERL_EVERY_TWIN" not in os.environ, reason="15 s, one more client: CORERL_EVERY_TWIN=1")
def test_the_harness_bash_of_verifiers(tmp_path):
    write_byte_tokenizer(tmp_path / "model")
    command = json.dumps({"name": "bash", "arguments": {"command": "expr 2 + 3 | tee note.txt"}})
    call = tool_tokenizer(tmp_path / "model").encode(f"Let me see.<tool_call>{command}</tool_call><|im_end|>")
    texts, model = (call, END), str(tmp_path / "model")
    results, models = play(tmp_path, "verifiers_bash.py", "bash", texts=texts, arguments=[model])
    assert results == {"reward": 1.0, "errors": []}
    [first, second] = models["bash"].nodes
    assert second.parent is first and read_text(second) == b"\ntool\n5\n\nassistant\n"
