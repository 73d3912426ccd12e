"""Sample rollouts on disk, for people, ``corerl report``, ``corerl score`` and ``corerl eval``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from corerl.batch.rollouts import Episode, Rollouts
from corerl.contracts.experience import Experience
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.tokenizers import ChatTokenizer
from corerl_tools.episodes.columns import branch_columns, episode_columns
from corerl_tools.evaluation.files import result_columns, write_rows

TOKEN_COLUMNS = {
    "log_probs": "old_log_probs",
    "rollout_log_probs": "rollout_log_probs",
    "ref_log_probs": "ref_log_probs",
    "advantages": "advantages",
}
"""column of the file -> field of the experience"""

CUT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class TokenColumns:
    """Per-token columns of the first ``rows`` responses, null for all other responses; and branches of all episodes.
    ``experience`` has the rows of those responses, and behind them those of their branches.

    ``token_ids``, ``token_texts``, and those that exist of ``log_probs`` (before the update), ``rollout_log_probs``,
    ``ref_log_probs`` and ``advantages``.
    """

    experience: Experience
    tokenizer: ChatTokenizer
    rows: int

    def columns(self, rollouts: Rollouts) -> list[dict[str, Any]]:
        """The columns of each row."""
        token_ids = [list(completion.token_ids) for completion in rollouts.completions[: self.rows]]
        pieces = token_texts(self.tokenizer, token_ids)
        columns = [
            {"token_ids": ids, "token_texts": of_row, **self._values(row, len(ids))}
            for row, (ids, of_row) in enumerate(zip(token_ids, pieces, strict=True))
        ]
        columns += [{} for _ in range(len(rollouts) - len(columns))]
        if rollouts.episodes is not None:
            for found, branches in zip(columns, self._branches(rollouts, rollouts.episodes), strict=True):
                found["branches"] = branches
        return columns

    def _values(self, row: int, length: int) -> dict[str, list[float]]:
        """Of the tokens of a row of the batch."""
        tensors = {name: getattr(self.experience, field) for name, field in TOKEN_COLUMNS.items()}
        return {name: tensor[row, :length].tolist() for name, tensor in tensors.items() if tensor is not None}

    def _branches(self, rollouts: Rollouts, episodes: Sequence[Episode]) -> Iterator[list[dict[str, Any]]]:
        texts, place = partial(token_texts, self.tokenizer), min(self.rows, len(rollouts))
        for row, episode in enumerate(episodes):
            values = None
            if row < self.rows:
                lengths = [len(branch.completion.token_ids) for branch in episode.branches]
                values = [self._values(place + number, length) for number, length in enumerate(lengths)]
                place += len(lengths)
            main = [*rollouts.prompts[row].token_ids, *rollouts.completions[row].token_ids]
            yield branch_columns(episode.branches, main, texts, values)


def token_texts(tokenizer: ChatTokenizer, rows: Sequence[Sequence[int]]) -> list[list[str]]:
    """The text of each token, special tokens included; the texts of a row, joined, are the row's text.

    If a character is spread over several tokens, its last token has the character and the others have ''.
    """

    decode = partial(tokenizer.decode, skip_special_tokens=False)
    # Some tokenizers drop the space that a text begins with, so tokens are decoded behind another one.
    before = tokenizer.stop_token_ids[0]
    different = sorted({token for row in rows for token in row})
    [prefix], pieces = decode([[before]]), decode([[before, token] for token in different])
    alone = {token: piece.removeprefix(prefix) for token, piece in zip(different, pieces, strict=True)}

    def texts(row: Sequence[int]) -> list[str]:
        found, waiting = [], list[int]()
        for token in row:
            if not waiting and CUT not in alone[token]:
                found.append(alone[token])
                continue
            waiting.append(token)
            [joined] = decode([[before, *waiting]])
            complete = not joined.endswith(CUT)
            found.append(joined.removeprefix(prefix) if complete else "")
            if complete:
                waiting = []
        if waiting:
            found[-1] = joined.removeprefix(prefix)
        return found

    return [texts(row) for row in rows]


def write_rollouts(
    path: Path, rollouts: Rollouts, results: Sequence[RewardResult], tokens: TokenColumns | None = None
) -> None:
    """One parquet row a response: prompt, response, score, components, error, lengths, weight version, its tokens.

    Of an episode also its conversation, requests and artifacts, and with a tokenizer its branches.
    """
    episodes: Sequence[Episode | None] = rollouts.episodes or [None] * len(rollouts)
    with_updates = any(completion.updates for completion in rollouts.completions)
    of_tokens: Sequence[dict[str, Any]] = tokens.columns(rollouts) if tokens else [{}] * len(rollouts)
    rows = [
        {
            "data_source": prompt.data_source,
            "prompt": prompt.messages,
            "response": response,
            "ground_truth": prompt.ground_truth,
            "extra_info": prompt.extra_info,
            **result_columns(result),
            "prompt_length": len(prompt.token_ids),
            "response_length": len(completion.token_ids),
            "finish_reason": completion.finish_reason,
            "weight_version": completion.weight_version,
            **({"weight_updates": [list(update) for update in completion.updates]} if with_updates else {}),
            "group": group,
            **({} if episode is None else episode_columns(episode)),
            **columns,
        }
        for prompt, completion, response, group, result, episode, columns in zip(
            rollouts.prompts,
            rollouts.completions,
            rollouts.responses,
            rollouts.group_ids,
            results,
            episodes,
            of_tokens,
            strict=True,
        )
    ]
    write_rows(path, rows)
