"""A run whose prompts are a mixture of the first rows."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def test_a_run_trains_on_a_mixture_of_the_first_rows(
    workplace: Any, train: Any, rows: Any, write: Callable[[Any], str]
) -> None:
    for row, source in zip(rows, "aaabc", strict=False):
        row["data_source"] = source
    mixed = [write(rows[:5]), "data.train_max_samples=4", "data.train_batch_size=4", "reward.scorer=length"]
    mixture = "data.sampler={name: mixture, weights: {a: 1, b: 1}}"
    assert train(*mixed, mixture, "trainer.total_training_steps=1", "trainer.log_rollouts_freq=1").code == 0
    [samples] = Path(workplace.runs).glob("*/*/rollouts/*.parquet")
    assert Counter(pq.read_table(samples)["data_source"].to_pylist()) == {"a": 4, "b": 4}
    outcome = train(*mixed, "data.sampler={name: mixture, weights: {a: 1}}")
    assert (outcome.code, "no weight for the data source 'b'" in outcome.error) == (2, True)
