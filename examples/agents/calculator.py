"""The tool of the example: a calculator."""

from corerl_envs.arithmetic import evaluate, shown


def calculator(expression: str) -> str:
    """Evaluate arithmetic."""
    return shown(evaluate(expression))
