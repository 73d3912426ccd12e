"""An agent of plain Python and the library openai: it walks on a grid to a goal, and the policy names each move."""

from openai import AsyncOpenAI

from corerl.contracts.agents import AgentResult
from corerl_envs.grid_walk import MOVES, new_walk

SIZE, TURNS = 4, 6  # no goal of this grid is farther away than six moves
CLIENT = AsyncOpenAI(base_url="http://127.0.0.1", api_key="of the episode", max_retries=0)  # its connections are shared


async def walk(task, model):
    """Ask for moves until the goal is reached; the reward is 1 if it is reached in time."""
    client = CLIENT.with_options(base_url=model.base_url, api_key=model.api_key)
    position, messages, wrong = new_walk(task.extra_info["seed"], SIZE), [], 0
    for _ in range(TURNS):
        messages.append({"role": "user", "content": position.observation()})
        answer = await client.chat.completions.create(model="policy", messages=messages, max_tokens=4)
        move = answer.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": move})
        wrong += move not in position.good_moves()
        if move in MOVES:
            position.move(move, SIZE)
        if not position.distance:
            break
    reward = float(not position.distance)
    return AgentResult(reward, prompt=messages[:1], messages=messages[1:], metrics={"wrong_moves": wrong})
