import pytest

from corerl_envs import Task
from corerl_envs.grid_walk import GridWalk, Walk, new_walk
from corerl_envs.grid_walk_data import GridWalkData
from corerl_envs.options import GridWalkDataOptions, GridWalkOptions

GAME = GridWalk(options=GridWalkOptions(size=4, goal_reward=1.0, step_reward=0.1, invalid_penalty=0.2))


@pytest.mark.parametrize(
    ("walk", "said"),
    [
        (Walk(2, 1, 0, 0), "goal: 2 left, 1 up"),
        (Walk(0, 0, 3, 0), "goal: 3 right"),
        (Walk(1, 0, 1, 2), "goal: 2 down"),
    ],
)
def test_an_observation_says_where_the_goal_is(walk, said):
    assert walk.observation() == said


def test_moves_are_rewarded_by_the_way_they_gain_and_the_last_one_by_the_goal():
    walk = Walk(2, 1, 1, 0)
    turns = [GAME.step(walk, response) for response in ("right", "hm", "I go left", "left\n", "up")]
    assert [turn.reward for turn in turns] == pytest.approx([-0.1, -0.2, 0.1, 0.1, 1.1])
    assert [turn.done for turn in turns] == [False, False, False, False, True]
    assert [turn.tool_errors for turn in turns] == [0, 1, 0, 0, 0]
    assert turns[0].messages == [{"role": "user", "content": "goal: 2 left, 1 up"}]


def test_the_edge_is_a_wall():
    walk = Walk(3, 0, 0, 0)
    assert GAME.step(walk, "right").reward == 0
    assert (walk.column, walk.row) == (3, 0)


def test_the_rows_seed_decides_and_without_one_the_episodes():
    with_seed = Task([], 1, "corerl/grid_walk", {"seed": 5})
    assert GAME.reset(with_seed, 1).state == GAME.reset(with_seed, 2).state == new_walk(5, 4)
    assert GAME.reset(Task([], 1, "x"), 6).state == new_walk(6, 4)
    assert all(new_walk(seed, 2).distance > 0 for seed in range(50))


def test_the_data_are_different_walks_in_each_split_and_the_same_every_time():
    options = GridWalkDataOptions(train_size=5, test_size=3, sft_size=4, moves=2, good=1.0)
    splits = {name: list(rows) for name, rows in GridWalkData(options).generate().items()}
    assert splits == {name: list(rows) for name, rows in GridWalkData(options).generate().items()}
    seeds = [row.extra_info["seed"] for name in ("train", "test") for row in splits[name]]
    assert len(set(seeds)) == 8
    for chat in splits["sft"]:
        for before, said in zip(chat.messages[::2], chat.messages[1::2], strict=False):
            assert f"{said['content']}" in before["content"]
