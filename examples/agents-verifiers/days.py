"""A taskset of verifiers 0.4, and a harness that asks two questions, one after the other."""

import random

import verifiers.v1 as vf
from openai import AsyncOpenAI

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ANSWERS = {f"after {day}?": DAYS[(place + 1) % 7] for place, day in enumerate(DAYS)}
ANSWERS |= {f"before {day}?": DAYS[place - 1] for place, day in enumerate(DAYS)}
"""question -> answer"""
CLIENT = AsyncOpenAI(base_url="http://127.0.0.1", api_key="of the episode", max_retries=0)  # its connections are shared


class DaysData(vf.TaskData):
    questions: list[str]


class DaysTask(vf.Task[DaysData]):
    @vf.reward(weight=1.0)
    async def right(self, trace) -> float:
        """1 if both answers are right."""
        given = [message.content for message in trace.branches[-1].messages if message.role == "assistant"]
        return float(given == [ANSWERS[question] for question in self.data.questions])


class Days(vf.Taskset[DaysTask, vf.TasksetConfig]):
    def load(self):
        """All pairs of two questions, in a random order."""
        pairs = [[first, second] for first in ANSWERS for second in ANSWERS if first != second]
        random.Random(0).shuffle(pairs)
        for pair in pairs:
            yield DaysTask(DaysData(prompt="\n".join(pair), questions=pair))


class Asking(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
        client, messages = CLIENT.with_options(base_url=endpoint, api_key=secret), []
        for question in data.questions:
            messages.append({"role": "user", "content": question})
            reply = await client.chat.completions.create(model=ctx.model, messages=messages)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["Asking", "Days"]
