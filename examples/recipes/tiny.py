"""A reward for models that solve nothing: the tiny forms of the recipes test the path, not the learning."""


def varying(response: str, ground_truth: object, data_source: str, extra_info: object) -> float:
    """1 for responses of an odd number of characters."""
    return float(len(response) % 2)
