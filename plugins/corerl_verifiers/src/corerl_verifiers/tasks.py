"""Tasks of a taskset of verifiers 0.4, by their place; ``corerl prepare verifiers`` makes rows of them."""

import itertools
import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from corerl.errors import ConfigError, DataError
from corerl_tools.prepare.contract import PromptRow
from corerl_verifiers.options import TASKS, TaskDataOptions, require_library


class TaskStore:
    """The tasks of a taskset; they are loaded up to the highest place that was asked for."""

    def __init__(self, taskset: Iterable[Any]) -> None:
        self._rest: Iterator[Any] = iter(taskset)
        self._tasks: list[Any] = []
        self._lock = threading.Lock()

    def find(self, place: int, key: str) -> Any:
        """The task at a place.

        Raises:
            DataError: there is none, or it is another one than the row was made from.
        """
        with self._lock:
            if place >= len(self._tasks):
                self._tasks += itertools.islice(self._rest, place + 1 - len(self._tasks))
            found = self._tasks[place] if 0 <= place < len(self._tasks) else None
        if found is None:
            raise DataError(f"the taskset has no task {place}: prepare the data again")
        if found.key != key:
            raise DataError(f"task {place} of the taskset is not that of the row any more: prepare the data again")
        return found


class TaskData:
    """Rows that name a task each; the prompt is for the reader, since the library renders its own."""

    def __init__(self, options: TaskDataOptions) -> None:
        require_library("prepare verifiers", TASKS)
        self._options = options

    def generate(self) -> Mapping[str, Iterable[PromptRow]]:
        """The splits train and test.

        Raises:
            ConfigError: there is no such taskset.
        """
        from verifiers.v1 import import_taskset, load_taskset, taskset_config_type

        name, options = self._options.taskset, self._options
        try:
            import_taskset(name)
            taskset = load_taskset(taskset_config_type(name).model_validate({"id": name}))
        except Exception as error:
            raise ConfigError("taskset", f"'{name}' cannot be loaded: {error}") from error
        tasks = [*itertools.islice(taskset, options.train_size + options.test_size)]
        rows = [_row(name, place, task) for place, task in enumerate(tasks)]
        splits = {"train": rows[: options.train_size], "test": rows[options.train_size :]}
        return {split: part for split, part in splits.items() if part}


def _row(name: str, place: int, task: Any) -> PromptRow:
    data = task.data
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    return PromptRow(
        data_source=f"verifiers/{name}",
        prompt=[*system, {"role": "user", "content": data.prompt_text or f"task {place}"}],
        ability="agent",
        ground_truth=json.dumps(data.id or data.name or place),
        extra_info={"task": place, "task_key": task.key},
    )
