"""verifiers 0.4: its training client, which renders chats itself and asks for tokens."""

import asyncio
import os
import sys

from episodes import QUESTION, address, report
from verifiers.v1.clients.train import TrainClient
from verifiers.v1.configs.client import TrainClientConfig
from verifiers.v1.dialects import ChatDialect
from verifiers.v1.types import SamplingConfig


async def main(folder):
    os.environ["EPISODE_KEY"] = address("tokens")["api_key"]
    config = TrainClientConfig(
        base_url=address("tokens")["base_url"], api_key_var="EPISODE_KEY", renderer_model_name=folder
    )
    client = TrainClient(config)
    messages, turns = [{"role": "user", "content": QUESTION}], []
    for limit in (None, 4):
        body = {"model": "any", "messages": messages}
        response = await client.get_response(ChatDialect(), body, SamplingConfig(max_tokens=limit))
        tokens = response.tokens
        turns.append([tokens.prompt_ids, tokens.completion_ids, tokens.completion_logprobs, response.finish_reason])
        messages += [response.raw["choices"][0]["message"], {"role": "user", "content": "Again."}]
    await client.close()
    report(turns=turns)


asyncio.run(main(sys.argv[1]))
