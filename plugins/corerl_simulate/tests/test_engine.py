"""The stub engine against calculations by hand."""

from collections.abc import Callable

import pytest

from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.errors import RunError
from corerl_simulate.engine import BLOCK, EngineSpeed, StubEngine
from corerl_simulate.virtual_time import VirtualTime


def played(engine: StubEngine, clock: VirtualTime, *prompts: tuple[float, int, int]) -> dict[int, float]:
    """Seed of a request -> the moment of its end; prompts are (moment, seed, tokens of the prompt), one sample each."""
    ends: dict[int, float] = {}

    async def submit(seed: int, prompt: int) -> None:
        sampling = SamplingParams(1000, seed=seed)
        engine.submit(GenerationRequest(str(seed), range(prompt), sampling), ended(seed))

    def ended(seed: int) -> Callable[[list[Completion]], None]:
        return lambda _: ends.setdefault(seed, clock.now)

    for moment, seed, prompt in prompts:
        clock.wait(moment - clock.now)
        clock.run(submit(seed, prompt))
    clock.wait(10_000)
    return ends


def engine_of(speed: EngineSpeed, cache: float = 1e9, most: int = 100) -> StubEngine:
    return StubEngine(speed, cache, most, lambda seed, sample: seed)


def test_a_batch_shrinks_as_samples_end() -> None:
    clock = VirtualTime()
    speed = EngineSpeed(step=0.010, sample=0.001)
    ends = played(engine_of(speed), clock, (0, 100, 5), (0, 300, 5))
    # 100 steps of two samples, 12 ms each; then 200 steps of one, 11 ms each
    assert ends == pytest.approx({100: 1.2, 300: 1.2 + 2.2})
    clock.close()


def test_tokens_in_the_cache_lengthen_the_steps() -> None:
    clock = VirtualTime()
    speed = EngineSpeed(step=0.010, token=1e-6, prefill=0.001)
    ends = played(engine_of(speed), clock, (0, 200, 50))
    # prefill 50 ms; step i has 50 + i tokens: 10 ms and 1 µs for each; the sum of i is taken as an integral
    assert ends[200] == pytest.approx(0.05 + 200 * 0.010 + 1e-6 * (200 * 50 + 200 * 200 / 2))
    clock.close()


def test_matrix_products_take_the_time_of_the_weights_at_least() -> None:
    speed = EngineSpeed(step=0, least=0.004, product=0.001)
    assert [speed.decode(running, 0, 1) for running in (1, 4, 10)] == pytest.approx([0.004, 0.004, 0.010])


def test_steps_are_the_inverse_of_their_time() -> None:
    speed = EngineSpeed(step=0.003, sample=1e-5, token=1e-7, least=0.001, product=1e-5)
    assert speed.steps(64, 9000, speed.decode(64, 9000, 321.5)) == pytest.approx(321.5)


def test_a_request_that_comes_later_joins_the_batch() -> None:
    clock = VirtualTime()
    speed = EngineSpeed(step=0.010, sample=0.010)
    ends = played(engine_of(speed), clock, (0, 100, 5), (1.0, 60, 5))
    # 50 steps of 20 ms alone, then 50 of 30 ms together; the second has 10 steps left, 20 ms each
    assert ends == pytest.approx({100: 1.0 + 1.5, 60: 1.0 + 1.5 + 0.2})
    clock.close()


def test_samples_beyond_the_largest_number_wait() -> None:
    clock = VirtualTime()
    ends = played(engine_of(EngineSpeed(step=0.010), most=1), clock, (0, 100, 5), (0, 50, 5))
    assert ends == pytest.approx({100: 1.0, 50: 1.5})
    clock.close()


def test_a_full_cache_preempts_the_latest_which_is_computed_again() -> None:
    clock = VirtualTime()
    engine = engine_of(EngineSpeed(step=0.010, prefill=0.001), cache=2 * 400 + 2 * BLOCK)
    engine._cache = 1200.0
    ends = played(engine, clock, (0, 900, 100), (0, 800, 100))
    # both grow to 600 tokens: 0.1 + 0.1 s of prefill, 500 steps; then the first is alone for 400 steps; the second has
    # 600 tokens computed again and 300 steps left
    assert ends[900] == pytest.approx(0.2 + 5 + 4, abs=0.03)
    assert ends[800] == pytest.approx(0.2 + 5 + 4 + 0.6 + 3, abs=0.05)
    clock.run(_is(engine, preempted=1))
    clock.close()


async def _is(engine: StubEngine, preempted: int) -> None:
    assert engine.load().preempted == preempted


def test_a_row_that_can_never_fit_is_an_error() -> None:
    clock = VirtualTime()
    with pytest.raises(RunError, match="a row of 1005 tokens does not fit the KV cache of an engine of 900"):
        played(engine_of(EngineSpeed(step=0.01), cache=900), clock, (0, 10, 5))
    clock.close()


def test_new_weights_reach_running_samples_and_the_pause_costs_its_time() -> None:
    clock = VirtualTime()
    engine = engine_of(EngineSpeed(step=0.010))
    found: list[Completion] = []

    async def submit() -> None:
        engine.submit(GenerationRequest("a", range(5), SamplingParams(1000, seed=100)), found.extend)

    async def pause() -> None:
        engine.pause()

    async def resume() -> None:
        engine.resume(1)

    clock.run(submit())
    clock.wait(0.405)
    clock.run(pause())
    clock.wait(2.0)
    clock.run(resume())
    clock.wait(0.59)
    assert found == []
    clock.wait(0.01)
    [completion] = found
    assert completion.version_runs() == [(0, 40, 0), (40, 100, 1)]
    clock.close()
