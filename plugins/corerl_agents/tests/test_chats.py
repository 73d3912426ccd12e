"""Chats in tokens: what continues, what branches, and what the client may change."""

import asyncio
import json
import random
import time

import pytest
from chat_families import FAMILIES, load_family, written
from recorded import ADD, LOOK, Engine, model_of, result

from corerl.contracts.agents import AgentResult
from corerl.errors import DataError
from corerl.rollout.rows import rollouts_of

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]
GO_ON = {"role": "user", "content": "Go on."}
CALLS = [("add", {"a": 1, "b": 2}), ("look_up", {"word": "ü"})]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return load_family(tmp_path_factory.mktemp("qwen"), "qwen2.5")


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    return load_family(tmp_path_factory.mktemp("qwen3"), "qwen3")


def says(name, *args, **kwargs):
    return written(FAMILIES[name], *args, **kwargs)


def parents(model):
    """The number of the request that each request continues, or None."""
    return [node.parent and node.parent.number for node in sorted(model.nodes, key=lambda node: node.number)]


def ask(model, *chats, tools=(ADD, LOOK), **options):
    """The replies to chats, each a list of messages or a function of the replies so far."""
    replies = []

    async def play():
        for chat in chats:
            messages = chat(replies) if callable(chat) else chat
            replies.append(await model.chat(messages, tools=tools, **options))

    asyncio.run(play())
    return replies


CHANGES = {
    "other ids of calls": lambda m: m["tool_calls"][0].update(id="x") or m["tool_calls"][1].update(id="y"),
    "no content": lambda m: m.pop("content"),
    "empty content": lambda m: m.update(content=""),
    "spelling of arguments": lambda m: m["tool_calls"][0]["function"].update(arguments='{"b":2,\n "a": 1}'),
    "arguments as an object": lambda m: m["tool_calls"][0]["function"].update(arguments={"a": 1, "b": 2}),
    "keys of another client": lambda m: m.update(refusal=None, audio=None, annotations=[], function_call=None),
    "nothing": lambda m: None,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_client_may_spell_a_turn_differently(qwen, change):
    model = model_of(qwen, Engine(qwen, [says("qwen2.5", "", CALLS), says("qwen2.5", "3")]))

    def later(replies):
        message = json.loads(json.dumps(replies[0].message))
        CHANGES[change](message)
        return [*CHAT, message, result(message, 0, "3"), result(message, 1, "u")]

    ask(model, CHAT, later)
    assert parents(model) == [None, 0]


REWRITES = {
    "another argument": lambda m: m["tool_calls"][0]["function"].update(arguments='{"a": 1, "b": 3}'),
    "another tool": lambda m: m["tool_calls"][0]["function"].update(name="sub"),
    "a call less": lambda m: m["tool_calls"].pop(),
    "another content": lambda m: m.update(content="Yes."),
}


@pytest.mark.parametrize("change", REWRITES)
def test_an_edited_turn_starts_a_branch_and_is_read(qwen, change):
    model = model_of(qwen, Engine(qwen, [says("qwen2.5", "", CALLS), says("qwen2.5", "3")]))

    def later(replies):
        message = json.loads(json.dumps(replies[0].message))
        REWRITES[change](message)
        return [*CHAT, message, result(message, 0, "3")]

    ask(model, CHAT, later)
    assert parents(model) == [None, None]


def test_results_in_another_order_belong_to_other_calls(qwen):
    script = [says("qwen2.5", "", CALLS), *[says("qwen2.5", "3")] * 3, says("qwen2.5", "4")]
    model = model_of(qwen, Engine(qwen, script))

    def results(*places):
        return lambda r: [*CHAT, r[0].message, *(result(r[0].message, place, "3") for place in places)]

    ask(model, CHAT, results(0, 1), results(1, 0), lambda r: [*results(0, 1)(r), r[1].message, GO_ON])
    assert parents(model) == [None, 0, 0, 1]


def test_an_edit_in_the_middle_continues_the_last_turn_before_it(qwen):
    model = model_of(qwen, Engine(qwen, [says("qwen2.5", str(n)) for n in range(4)]))

    def chat(r, *tail):
        return [*CHAT, r[0].message, GO_ON, *tail]

    ask(
        model,
        CHAT,
        lambda r: chat(r),
        lambda r: chat(r, {"role": "assistant", "content": "edited"}, GO_ON),
        lambda r: chat(r, {"role": "assistant", "content": "edited"}, GO_ON, r[2].message, GO_ON),
    )
    assert parents(model) == [None, 0, 0, 2]


@pytest.mark.parametrize("kind", ["other tools", "a compacted history", "a sub-agent", "another system message"])
def test_another_history_starts_a_branch(qwen, kind):
    model = model_of(qwen, Engine(qwen, [says("qwen2.5", str(n)) for n in range(3)]))

    async def play():
        first = await model.chat(CHAT, tools=[ADD])
        chat = [*CHAT, first.message, GO_ON]
        if kind == "other tools":
            await model.chat(chat, tools=[LOOK])
        elif kind == "a compacted history":
            await model.chat([CHAT[0], {"role": "user", "content": "in short: 0"}], tools=[ADD])
        elif kind == "a sub-agent":
            await model.chat([{"role": "user", "content": "Do a part."}])
        else:
            await model.chat([{**CHAT[0], "content": "Be long."}, *chat[1:]], tools=[ADD])
        await model.chat(chat, tools=[ADD])

    asyncio.run(play())
    assert parents(model) == [None, None, 0]


def test_a_retry_is_a_second_sample_of_one_prompt_and_the_later_chat_picks_its_own(qwen):
    model = model_of(qwen, Engine(qwen, [says("qwen2.5", text) for text in ("a", "b", "c")]))
    first, second, _ = ask(model, CHAT, CHAT, lambda r: [*CHAT, r[0].message, GO_ON])
    assert (first.message["content"], second.message["content"]) == ("a", "b")
    assert parents(model) == [None, None, 0]


def test_parallel_requests_of_one_chat_each_go_on(qwen):
    model = model_of(qwen, Engine(qwen, [says("qwen2.5", f"{n}") for n in range(8)]))

    async def play():
        replies = await asyncio.gather(*(model.chat(CHAT) for _ in range(4)))
        await asyncio.gather(*(model.chat([*CHAT, each.message, GO_ON]) for each in replies))

    asyncio.run(play())
    assert parents(model)[:4] == [None] * 4 and sorted(parents(model)[4:]) == [0, 1, 2, 3]


def test_reasoning_stays_in_the_tokens_among_calls_and_goes_where_the_template_drops_it(qwen3):
    """Within a loop of calls the template keeps reasoning; a new message of the user drops it: a branch."""
    script = [says("qwen3", "", CALLS[:1], "I think"), says("qwen3", "3", (), "so"), says("qwen3", "4")]
    engine = Engine(qwen3, script)
    model = model_of(qwen3, engine)

    def without(message):
        return {key: value for key, value in message.items() if key != "reasoning_content"}

    def loop(r):
        return [*CHAT, without(r[0].message), result(r[0].message, 0, "3")]

    replies = ask(model, CHAT, loop, lambda r: [*loop(r), r[1].message, GO_ON])
    assert [reply.message.get("reasoning_content") for reply in replies] == ["I think", "so", None]
    assert parents(model) == [None, 0, None]
    [kept], [dropped] = (qwen3.decode([engine.asked[n][0]], skip_special_tokens=False) for n in (1, 2))
    assert "I think" in kept and "think" not in dropped.split("SHOW")[-1].split("Go.")[-1]


def test_other_reasoning_is_another_history(qwen3):
    model = model_of(qwen3, Engine(qwen3, [says("qwen3", "", CALLS[:1], "I think"), says("qwen3", "3")]))

    def later(r):
        message = {**r[0].message, "reasoning_content": "You think"}
        return [*CHAT, message, result(message, 0, "3")]

    ask(model, CHAT, later)
    assert parents(model) == [None, None]


def test_half_a_character_is_sent_as_it_looks_and_continued_as_it_was_sampled(qwen):
    engine = Engine(qwen, answer=lambda ids: [0xE6, 0xBC, 258 if len(ids) < 200 else 256])
    model = model_of(qwen, engine)
    first, _ = ask(model, CHAT, lambda r: [*CHAT, r[0].message, GO_ON], tools=())
    assert "\ufffd" in first.message["content"]
    assert engine.asked[1][0][: len(engine.asked[0][0]) + 3] == [*engine.asked[0][0], 0xE6, 0xBC, 258]


def test_a_stop_text_is_no_part_of_the_content(qwen):
    engine = Engine(qwen, ["Yes.\nEnd of it", says("qwen2.5", "3")])
    model = model_of(qwen, engine)
    first, _ = ask(model, CHAT, lambda r: [*CHAT, r[0].message, GO_ON], tools=(), stop=["\nEnd"])
    assert first.message["content"] == "Yes."
    [text] = qwen.decode([engine.asked[1][0]], skip_special_tokens=False)
    assert "Yes.\nEnd<|im_end|>\n<|im_start|>user" in text
    assert parents(model) == [None, 0]


def test_without_room_the_reply_is_empty_and_continues_nothing(qwen):
    model = model_of(qwen, Engine(qwen, [says("qwen2.5", "a" * 50), says("qwen2.5", "b")]), room=1)
    model._max_prompt_length = 1000
    first, second = ask(model, CHAT, lambda r: [*CHAT, r[0].message, GO_ON], tools=())
    assert (first.message["content"], first.sampled.finish_reason) == ("a", "length")
    assert (second.message, list(second.sampled.token_ids)) == ({"role": "assistant", "content": ""}, [])


def test_contents_in_parts_are_texts_and_images_are_refused_by_a_model_of_text(qwen):
    model = model_of(qwen, Engine(qwen, [says("qwen2.5", "1"), says("qwen2.5", "2")]))
    parts = [{"type": "text", "text": "G"}, {"type": "text", "text": "o.", "cache_control": {"type": "ephemeral"}}]
    ask(model, CHAT, lambda r: [CHAT[0], {"role": "user", "content": parts}, r[0].message, GO_ON])
    assert parents(model) == [None, 0]
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    for messages, reason in (
        ([{"role": "user", "content": [image]}], "the model reads text alone"),
        ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], "input_audio"),
        ([{"role": "assistant", "content": [image]}], "is the assistant's and has an image"),
        ([], "needs messages"),
        ([{"content": "?"}], "with a role"),
        ([{"role": "user", "content": 3}], "must be a text, not int"),
        ([{"role": "assistant", "tool_calls": [{"name": "f"}]}], "tool_calls must be"),
    ):
        with pytest.raises(DataError, match=reason):
            ask(model, messages)


def test_special_tokens_that_the_policy_writes_reach_no_client(qwen):
    model = model_of(qwen, Engine(qwen, ["a<|im_start|>b<|im_end|>"]))
    [reply] = ask(model, CHAT)
    assert reply.message["content"] == "ab"


def test_a_probe_in_a_message_is_text(qwen):
    from corerl_agents.turns import PROBE

    engine = Engine(qwen, [says("qwen2.5", "1"), says("qwen2.5", "2")])
    ask(model_of(qwen, engine), CHAT, lambda r: [*CHAT, r[0].message, {"role": "user", "content": f"a{PROBE}b"}])
    [text] = qwen.decode([engine.asked[1][0]], skip_special_tokens=False)
    assert f"a{PROBE}b<|im_end|>" in text and text.count("<|im_start|>user") == 2


def test_a_hundred_turns_encode_only_what_was_appended(qwen):
    lengths = []

    class Counting:
        def __init__(self, inner):
            self._inner = inner

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def encode(self, texts):
            lengths.append(sum(map(len, texts)))
            return self._inner.encode(texts)

        def encode_inside(self, texts):
            return self.encode(texts)

    counted = Counting(qwen)
    engine = Engine(qwen, answer=lambda ids: [*b"ok", 258])
    model = model_of(counted, engine)
    chat = [*CHAT]

    async def play():
        for turn in range(100):
            reply = await model.chat(chat, tools=[ADD])
            chat.extend([reply.message, {"role": "user", "content": f"turn {turn} " + "x" * 300}])

    start = time.process_time()
    asyncio.run(play())
    assert time.process_time() - start < 5
    assert parents(model) == [None, *range(99)]
    assert max(lengths[-99:]) < 400
    assert len(engine.asked[-1][0]) > 30_000


class Client:
    """A client that goes on, retries, edits and forgets, at random."""

    def __init__(self, seed, model, tokenizer):
        self.random, self.model, self.tokenizer = random.Random(seed), model, tokenizer
        self.known = []
        """(messages, reply) of every request"""

    def spelled(self, message):
        """The same message as another client writes it."""
        message = json.loads(json.dumps(message))
        for call in message.get("tool_calls", ()):
            if self.random.random() < 0.5:
                call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=1)
        if message["content"] is None and self.random.random() < 0.5:
            message["content"] = ""
        return message

    def next_chat(self):
        if not self.known or self.random.random() < 0.15:
            return [*CHAT, *([GO_ON] if self.random.random() < 0.3 else [])], None
        number = self.random.randrange(len(self.known))
        messages, reply = self.known[number]
        if self.random.random() < 0.2:
            return messages, "retry"
        calls = reply.get("tool_calls", ())
        tail = [result(reply, place, f"r{self.random.randrange(3)}") for place in range(len(calls))] or [GO_ON]
        if self.random.random() < 0.2:
            return [*messages, {"role": "assistant", "content": f"edited {self.random.random()}"}, GO_ON], None
        return [*map(self.spelled, messages), self.spelled(reply), *tail], number

    async def play(self, requests):
        for _ in range(requests):
            chat, continued = self.next_chat()
            reply = await self.model.chat(chat, tools=[ADD, LOOK])
            self.known.append((chat, dict(reply.message)))
            if isinstance(continued, int):
                node = next(each for each in self.model.nodes if each.number == len(self.known) - 1)
                assert node.parent is not None
                before = self.known[continued][1]
                assert self.known[node.parent.number][1]["content"] == before["content"]


def random_turn(rng):
    """Tokens that a policy may sample: text, calls, half characters, cut off or not."""
    kind = rng.random()
    if kind < 0.3:
        chosen = rng.sample(CALLS, rng.randint(1, 2))
        text = says("qwen2.5", "", [(name, {**given}) for name, given in chosen]).removesuffix("<|im_end|>").encode()
    else:
        text = bytes(rng.choice(b"ab \n\xe6\xbc\xa2<") for _ in range(rng.randint(1, 12)))
    return [*text, *([258] if kind < 0.9 else [])]


@pytest.mark.parametrize("seed", range(6))
def test_any_client_gets_its_conversations_token_for_token(qwen, seed):
    """Four interleaved episodes: the record is the engine's, and every prompt is the template's text of its chat."""
    rng = random.Random(seed)
    engines = [Engine(qwen, answer=lambda ids: random_turn(rng)) for _ in range(4)]
    models = [model_of(qwen, engine) for engine in engines]
    clients = [Client(seed * 10 + n, model, qwen) for n, model in enumerate(models)]

    async def play():
        await asyncio.gather(*(client.play(25) for client in clients))

    asyncio.run(play())
    for engine, model, client in zip(engines, models, clients, strict=True):
        recorded = []
        for node in sorted(model.nodes, key=lambda each: each.number):
            path = node.path()
            ids = [i for each in path for part in (each.read, each.turn.token_ids) for i in part]
            recorded.append((ids[: -len(node.turn.token_ids)], list(node.turn.token_ids)))
        assert recorded == engine.asked
        for (prompt, _), (chat, _) in zip(engine.asked, client.known, strict=True):
            assert qwen.decode([prompt], skip_special_tokens=False) == [rendered(qwen, chat)]
        rows = rollouts_of(model, AgentResult())
        trained = sum(sum(episode.response_mask) for episode in rows.episodes) + sum(
            sum(branch.response_mask) for episode in rows.episodes for branch in episode.branches
        )
        assert trained == sum(len(sampled) for _, sampled in engine.asked)


def rendered(tokenizer, chat):
    shown = json.loads(json.dumps(chat))
    for message in shown:
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        message["content"] = message.get("content") or ""
    given = {"template_kwargs": {"tools": [ADD, LOOK]}}
    return tokenizer.unmarked(tokenizer.render(shown, "a test", add_generation_prompt=True, **given))


def test_malformed_calls_and_rewritten_chats_are_metrics_of_the_episode(qwen3):
    script = [says("qwen3", "<tool_call>add</tool_call>", (), "hm"), says("qwen3", "3")]
    model = model_of(qwen3, Engine(qwen3, script))
    ask(model, CHAT, lambda r: [*CHAT, r[0].message, GO_ON])
    [episode] = rollouts_of(model, AgentResult(metrics={"own": 1})).episodes
    counts = {"agent/malformed_calls": 1, "agent/rewritten_chats": 1, "agent/spelled_control_tokens": 0}
    assert episode.metrics == {**counts, "own": 1}
