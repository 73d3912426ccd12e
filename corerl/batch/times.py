"""The time of an episode: requests that wait, requests under way, the agent's own work, scoring."""

from collections.abc import Iterator, Mapping, Sequence

from corerl.batch.rollouts import RequestRecord

KINDS = ("waiting", "generating", "tool", "scoring")


def totals(requests: Sequence[RequestRecord], seconds: Mapping[str, float]) -> dict[str, float]:
    """Kind -> seconds, for each of KINDS."""
    sums = dict.fromkeys(KINDS, 0.0) | {"scoring": seconds.get("scored", 0.0)}
    for kind, start, end in stretches(requests, played_seconds(requests, seconds)):
        sums[kind] += end - start
    return sums


def context(requests: Sequence[RequestRecord]) -> int:
    """The largest number of tokens in a conversation: read and sampled ones from its first request on."""
    tokens = list[int]()
    for each in requests:
        tokens.append((tokens[each.parent] if each.parent >= 0 else 0) + each.read + each.sampled)
    return max(tokens, default=0)


def played_seconds(requests: Sequence[RequestRecord], seconds: Mapping[str, float]) -> float:
    """The length of an episode without its scoring, in seconds."""
    return max([seconds.get("played", 0.0), *(each.answered for each in requests)])


def stretches(requests: Sequence[RequestRecord], played: float) -> Iterator[tuple[str, float, float]]:
    """(kind, start, end) between each two moments at which a request changes its state."""
    changes = [(played, 0, 0)]
    for each in requests:
        changes += [(each.asked, 1, 0), (each.sent, -1, 1), (each.answered, 0, -1)]
    changes.sort()
    start, waiting, generating = 0.0, 0, 0
    for end, waits, generates in changes:
        yield "generating" if generating else "waiting" if waiting else "tool", start, end
        start, waiting, generating = end, waiting + waits, generating + generates
