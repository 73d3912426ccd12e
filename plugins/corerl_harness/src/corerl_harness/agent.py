"""The agent ``harness``: runs a command for each episode, and looks at its folder afterwards."""

import asyncio
import contextlib
import dataclasses
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from corerl.contracts.agents import AgentContext, AgentResult, Model, Task
from corerl.contracts.surroundings import reach_directly
from corerl.errors import DataError, RunError
from corerl_harness import scores, variables
from corerl_harness.folder import Folder, make_folder, read_files
from corerl_harness.management import MANAGE_SECONDS, manage
from corerl_harness.metrics import metrics_of
from corerl_harness.options import CONTAINERS, HarnessOptions, words
from corerl_harness.process import Command, Ended, Limits, run
from corerl_harness.requirements import control_group
from corerl_harness.strange_files import write_within
from corerl_harness.surroundings import Container, Surroundings, surroundings_of

HARBOR_TEST = "bash /tests/test.sh"


class HarnessAgent:
    """See :class:`corerl.contracts.agents.Agent`."""

    def __init__(self, context: AgentContext, *, options: HarnessOptions) -> None:
        self._options = options
        self._given = variables.given_variables(options.environment)
        self._group = control_group(options)
        self._places = asyncio.Semaphore(options.max_commands)

    async def run(self, task: Task, model: Model) -> AgentResult:
        """Play one episode."""
        async with self._places:
            folder = await asyncio.to_thread(make_folder, task, self._options)
            try:
                async with self._surroundings(task, folder) as surroundings:
                    return await self._play(task, model, folder, surroundings)
            finally:
                if not self._options.keep_folders:
                    await asyncio.to_thread(folder.remove)

    async def _play(self, task: Task, model: Model, folder: Folder, surroundings: Surroundings) -> AgentResult:
        limits = self._options.command_limits()
        if task.extra_info.get("agent_seconds"):
            limits = dataclasses.replace(limits, seconds=min(limits.seconds, float(task.extra_info["agent_seconds"])))
        ended = await self._command(
            words(self._options.command), folder, surroundings, limits, variables.addresses(model) | self._given
        )
        if ended.how == "not started":
            raise RunError(f"the harness's command was not started: {ended.error}")
        if isinstance(surroundings, Container):
            await manage(surroundings.again())
        reward, parts, checked = await self._score(task, folder, surroundings)
        artifacts = {"output": ended.output} | ({"check_output": checked.output} if checked else {})
        return AgentResult(reward, components=parts, metrics=metrics_of(ended, checked), artifacts=artifacts)

    async def _score(
        self, task: Task, folder: Folder, surroundings: Surroundings
    ) -> tuple[float, dict[str, float], Ended | None]:
        """(reward, its parts, the check's end)."""
        if source := task.extra_info.get("harbor"):
            if self._options.isolation == "none":
                raise DataError("a task in Harbor's format has paths like /tests: set isolation to another than none")
            await asyncio.to_thread(folder.stage_tests, Path(source) / "tests", self._options.user)
            checked = await self._check(words(HARBOR_TEST), task, folder, surroundings)
            reward, parts = await asyncio.to_thread(scores.harbor_reward, folder)
            return reward, parts, checked
        await asyncio.to_thread(self._write_check_files, task, folder)
        rewards, ended = [], None
        if expected := scores.expected_files(task):
            rewards.append(await asyncio.to_thread(scores.share_of_equal, expected, folder.work))
        if self._options.check_command is not None:
            ended = await self._check(words(self._options.check_command), task, folder, surroundings)
            rewards.append(scores.checked_reward(ended, self._options.check_prints_reward))
        return (sum(rewards) / len(rewards) if rewards else 0.0), {}, ended

    async def _check(self, line: Sequence[str], task: Task, folder: Folder, surroundings: Surroundings) -> Ended:
        seconds = float(task.extra_info.get("check_seconds") or self._options.check_timeout)
        limits = dataclasses.replace(self._options.command_limits(), seconds=seconds)
        return await self._command(line, folder, surroundings, limits, self._given)

    @staticmethod
    def _write_check_files(task: Task, folder: Folder) -> None:
        for path, text in read_files(task.extra_info.get("check_files"), "check_files").items():
            write_within(folder.work, path, text)

    async def _command(
        self, line: Sequence[str], folder: Folder, surroundings: Surroundings, limits: Limits, given: dict[str, str]
    ) -> Ended:
        mark = secrets.token_hex(16)
        own = variables.base_variables(
            surroundings.home, surroundings.temporary, os.environ.get("PATH", variables.PATH), mark
        )
        environment = own | given
        endpoint = urlsplit(given.get("CORERL_BASE_URL", "")).hostname
        reach_directly(*filter(None, [endpoint]), environment=environment)
        started = surroundings.start(line, environment)
        in_container = isinstance(surroundings, Container)
        return await run(
            Command(
                arguments=started.words,
                folder=started.folder,
                disk_folder=str(folder.work),
                limits=dataclasses.replace(limits, rlimits=not in_container),
                mark=mark,
                environment=started.environment,
                group=self._group,
                user=self._options.user,
                own_users=self._options.isolation != "apptainer",
            )
        )

    @contextlib.asynccontextmanager
    async def _surroundings(self, task: Task, folder: Folder) -> AsyncIterator[Surroundings]:
        options = self._options
        image = str(task.extra_info.get("image") or options.image or "")
        if options.isolation in CONTAINERS and not image:
            raise DataError("the task names no image (extra_info.image), and the option image is null")
        seconds = options.timeout + options.check_timeout + 3 * MANAGE_SECONDS
        made = surroundings_of(
            options,
            folder,
            image,
            f"corerl-{secrets.token_hex(8)}",
            seconds,
            in_image=bool(task.extra_info.get("harbor")),
        )
        if not isinstance(made, Container):
            yield made
            return
        try:
            await manage(made.begin())
            yield made
        finally:
            await manage(made.end())
