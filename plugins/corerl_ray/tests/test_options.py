import pytest

from corerl.config.typed import build
from corerl.errors import ConfigError
from corerl_ray.options import RayOptions


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ranks": {"actor": 2}}, "ranks must not name actor: it has one on each of the workers' places"),
        ({"ranks": {"critic": 0}}, "ranks.critic is 0, and must be at least 1"),
        ({"apart": ["critic"]}, "apart names critic, whose number of ranks is missing: set ranks.critic"),
    ],
)
def test_ranks_that_no_model_can_have_are_refused(given, message):
    with pytest.raises(ConfigError, match=f"^runtime.options: {message}"):
        build(RayOptions, given, "runtime.options")
