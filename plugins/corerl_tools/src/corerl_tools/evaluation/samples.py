"""Sample rollouts on disk, for people, ``corerl report``, ``corerl score`` and ``corerl eval``."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from corerl.batch.rollouts import Episode, Rollouts
from corerl.contracts.experience import Experience
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.tokenizers import ChatTokenizer
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
    """Per-token columns of the first ``rows`` responses; null for all other responses.

    ``token_ids``, ``token_texts``, and those that exist of ``log_probs`` (before the update), ``rollout_log_probs``,
    ``ref_log_probs`` and ``advantages``.
    """

    experience: Experience
    tokenizer: ChatTokenizer
    rows: int

    def columns(self, rollouts: Rollouts) -> list[dict[str, Any]]:
        """The columns of each row."""
        token_ids = [list(completion.token_ids) for completion in rollouts.completions[: self.rows]]
        texts = token_texts(self.tokenizer, token_ids)
        tensors = {name: getattr(self.experience, field) for name, field in TOKEN_COLUMNS.items()}
        written = [
            {
                "token_ids": ids,
                "token_texts": pieces,
                **{name: tensor[row, : len(ids)].tolist() for name, tensor in tensors.items() if tensor is not None},
            }
            for row, (ids, pieces) in enumerate(zip(token_ids, texts, strict=True))
        ]
        return written + [{}] * (len(rollouts) - len(written))


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
    """One parquet row a response: prompt, response, score, components, error, lengths, weight version, its tokens."""
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


def episode_columns(episode: Episode) -> dict[str, Any]:
    """The environment's columns of a response."""
    return {
        "episode": episode.messages,
        "environment_reward": episode.reward,
        "environment_error": episode.error,
    }
