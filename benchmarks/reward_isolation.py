"""What it costs to score in worker processes, and what an attack costs the others.

::

    python benchmarks/reward_isolation.py throughput --gsm8k train.jsonl --math test.jsonl
    python benchmarks/reward_isolation.py hostile --gsm8k train.jsonl --math test.jsonl
    python benchmarks/reward_isolation.py memory --gsm8k train.jsonl

Processor time is read from the kernel for every process that takes part, so that it can be compared on a machine that
others use as well; wall times cannot. Each contender has its turn in every round, and medians over rounds are printed.
"""

import argparse
import ctypes
import dataclasses
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from corerl.contracts.reward_managers import RewardManager, RewardRequest
from corerl.registry.modules import load_object
from corerl_rewards.naive import NaiveRewardManager
from corerl_rewards.options import ParallelOptions
from corerl_rewards.parallel import ParallelRewardManager
from corerl_rewards.scorers import verifier_worker
from corerl_rewards.scorers.boxed import last_boxed
from corerl_rewards.scorers.extraction import number_after
from corerl_rewards.scorers.gsm8k import MARK, gsm8k
from corerl_rewards.scorers.verifier import Budget, Verifier

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
VERIFIER = Verifier()
ATTACKS: Mapping[str, Callable[[], object]] = {
    "endless loop": lambda: any(False for _ in iter(int, 1)),
    "loop in C": lambda: str(9**9**9),
    "sleep": lambda: time.sleep(600),
    "allocation": lambda: bytearray(10 << 30),
    "segfault": lambda: ctypes.string_at(0),
    "sys.exit": lambda: sys.exit(1),
    "os._exit": lambda: os._exit(1),
    "closed files": lambda: os.closerange(0, 1000),
    "exception": lambda: 1 // 0,
    "output": lambda: [print("x" * 1_000_000) for _ in range(100)],
}


def math_verify(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> float:
    """The library alone, without the quicker ways of the scorer ``math``."""
    return float(VERIFIER.equal(ground_truth, response, Budget(30.0)))


def hostile(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> Any:
    """``gsm8k``, and what ``extra_info`` asks for."""
    if attack := extra_info.get("attack"):
        ATTACKS[attack]()
    return gsm8k(response, ground_truth, data_source, extra_info)


def hostile_math(response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any]) -> Any:
    """``math_verify``, and what ``extra_info`` asks for."""
    if attack := extra_info.get("attack"):
        ATTACKS[attack]()
    return math_verify(response, ground_truth, data_source, extra_info)


def here(name: str) -> Any:
    """A function of this file, as worker processes find it."""
    return load_object(f"{__file__}:{name}")


def gsm8k_requests(file: Path, count: int) -> list[RewardRequest]:
    answers = [json.loads(line)["answer"] for line in file.read_text().splitlines()]
    texts = [answers[number % len(answers)] for number in range(count)]
    return [RewardRequest(text, str(number_after(text, MARK)).replace(",", ""), "s") for text in texts]


def math_requests(file: Path, count: int) -> list[RewardRequest]:
    """Answers of MATH's test set against themselves, written a little differently."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    answers = [row.get("answer") or last_boxed(row["solution"]) for row in rows]
    chosen = [answer for answer in answers if answer][:: max(1, len(answers) // count)][:count]
    return [RewardRequest(f"{answer} ", answer, "s") for answer in chosen]


def processor_seconds(manager: ParallelRewardManager) -> float:
    """User and system time so far of the nursery, and of all workers, also those that ended."""
    total = 0.0
    for pid in (manager._dispatcher._pool.pid, *workers(manager)):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:  # it has just ended: the nursery's figures have it
            return processor_seconds(manager)
        total += sum(map(int, fields[11:15])) / TICK
    return total


def workers(manager: ParallelRewardManager) -> list[int]:
    nursery = manager._dispatcher._pool.pid
    return [int(pid) for pid in Path(f"/proc/{nursery}/task/{nursery}/children").read_text().split()]


def resident_mib(pids: Sequence[int]) -> float:
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * PAGE / 2**20


def print_table(rows: Sequence[Sequence[Any]]) -> None:
    for row in rows:
        print("| " + " | ".join(f"{cell:,.2f}" if isinstance(cell, float) else str(cell) for cell in row) + " |")


def bare_loop(requests: Sequence[RewardRequest], score: Callable[[RewardRequest], object]) -> None:
    for each in requests:
        score(each)


def throughput(arguments: argparse.Namespace) -> dict[str, Any]:
    """Responses a second, and processor time of each, of naive, parallel and a bare loop."""
    result: dict[str, Any] = {}
    rows: list[Sequence[Any]] = [
        ("scorer", "how", "responses/s", "µs of processor", "speed by processor time, bare loop: 1", "by wall time")
    ]
    equal = verifier_worker.load()
    cases: list[tuple[str, Any, list[RewardRequest], Callable[[RewardRequest], object]]] = []
    if arguments.gsm8k:
        requests = gsm8k_requests(arguments.gsm8k, arguments.count)
        cases.append(("gsm8k", gsm8k, requests, lambda each: gsm8k(each.response, each.ground_truth, "s", {})))
    if arguments.math:
        requests = math_requests(arguments.math, arguments.math_count)
        cases.append(("math-verify", here("math_verify"), requests, lambda r: equal(r.ground_truth, r.response)))
    for name, scorer, requests, bare in cases:
        timings: dict[str, list[tuple[float, float]]] = {"bare loop": [], "naive": [], "parallel": []}
        parallel = ParallelRewardManager(
            {"s": scorer}, num_workers=arguments.workers, timeout=30, options=ParallelOptions(calls_per_worker=10**9)
        )
        naive = NaiveRewardManager({"s": scorer}, num_workers=arguments.workers, timeout=30)
        contenders: dict[str, Callable[[], object]] = {
            "bare loop": functools.partial(bare_loop, requests, bare),
            "naive": functools.partial(naive.score, requests),
            "parallel": functools.partial(parallel.score, requests),
        }
        if name == "math-verify":
            del contenders["naive"], timings["naive"]
        for how in contenders:
            contenders[how]()
        for _ in range(arguments.rounds):
            for how, run in contenders.items():
                start, used = time.perf_counter(), time.process_time() + processor_seconds(parallel)
                run()
                used = time.process_time() + processor_seconds(parallel) - used
                timings[how].append((time.perf_counter() - start, used))
        parallel.close()
        for how, times in timings.items():
            wall, used = (statistics.median(part) for part in zip(*times, strict=True))
            pairs = list(zip(timings["bare loop"], times, strict=True))
            by_wall, by_processor = (statistics.median(bare[n] / own[n] for bare, own in pairs) for n in (0, 1))
            rows.append((name, how, len(requests) / wall, 1e6 * used / len(requests), by_processor, by_wall))
            result[f"{name} {how}"] = {
                "per_second": len(requests) / wall,
                "cpu_us": 1e6 * used / len(requests),
                "ratio_cpu": by_processor,
                "ratio_wall": by_wall,
            }
    print_table(rows)
    return result


def hostile_batch(arguments: argparse.Namespace) -> dict[str, Any]:
    """A clean batch, and the same with an attack in every tenth response."""
    rows: list[Sequence[Any]] = [("scorer", "responses", "attacks", "clean s", "hostile s", "1.5 · clean + deadline")]
    result: dict[str, Any] = {}
    number = (2 * arguments.rounds + 1) * arguments.count
    if arguments.gsm8k:
        result["gsm8k"] = clean_and_hostile(arguments, here("hostile"), gsm8k_requests(arguments.gsm8k, number))
    if arguments.math:
        result["math-verify"] = clean_and_hostile(
            arguments, here("hostile_math"), math_requests(arguments.math, number)
        )
    for name, times in result.items():
        rows.append((name, arguments.count, arguments.count // 10, *times.values()))
    print_table(rows)
    return result


def clean_and_hostile(
    arguments: argparse.Namespace, scorer: Any, all_requests: list[RewardRequest]
) -> dict[str, float]:
    """Seconds of each; no request is in two batches, as far as there are so many."""
    manager = ParallelRewardManager(
        {"s": scorer},
        num_workers=arguments.workers,
        timeout=arguments.timeout,
        options=ParallelOptions(memory_limit_gb=1.0),
    )
    starts = range(0, len(all_requests), arguments.count)
    batches = iter([all_requests[start : start + arguments.count] for start in starts])
    manager.score(next(batches))
    seconds: dict[str, list[float]] = {"clean": [], "hostile": []}
    for number, requests in enumerate(batches):
        name = ("clean", "hostile")[number % 2]
        batch = attacked(requests) if name == "hostile" else requests
        start = time.perf_counter()
        results = manager.score(batch)
        seconds[name].append(time.perf_counter() - start)
        attacks = [request.extra_info.get("attack", "output") != "output" for request in batch]
        assert [each.score is None for each in results] == attacks, "the wrong responses have no score"
    manager.close()
    clean, hostile_time = (statistics.median(seconds[name]) for name in ("clean", "hostile"))
    return {"clean": clean, "hostile": hostile_time, "limit": 1.5 * clean + arguments.timeout}


def attacked(requests: Sequence[RewardRequest]) -> list[RewardRequest]:
    """With an attack in every tenth."""
    names = list(ATTACKS)
    return [
        dataclasses.replace(each, extra_info={"attack": names[n // 10 % len(names)]}) if n % 10 == 5 else each
        for n, each in enumerate(requests)
    ]


def memory(arguments: argparse.Namespace) -> dict[str, Any]:
    """Resident memory of this process and of the workers over 200,000 calls."""
    requests = gsm8k_requests(arguments.gsm8k, 1000)
    manager: RewardManager = ParallelRewardManager({"s": gsm8k}, num_workers=arguments.workers, timeout=30)
    rows: list[Sequence[Any]] = [("calls", "this process MiB", "workers MiB each")]
    for batch in range(arguments.count // 1000 + 1):
        if batch % 20 == 0:
            pids = workers(manager)  # type: ignore[arg-type]
            rows.append((1000 * batch, resident_mib([os.getpid()]), resident_mib(pids) / max(1, len(pids))))
        manager.score(requests)
    manager.close()
    print_table(rows)
    return {"first": rows[2][1], "last": rows[-1][1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["throughput", "hostile", "memory"])
    parser.add_argument("--gsm8k", type=Path, help="JSON lines with 'answer'")
    parser.add_argument("--math", type=Path, help="JSON lines with 'answer' or 'solution'")
    parser.add_argument("--count", type=int, default=0, help="responses; 0: 20,000, hostile 512, memory 200,000")
    parser.add_argument("--math-count", type=int, default=200, help="answers of --math")
    parser.add_argument("--workers", type=int, default=0, help="0: hostile 4, throughput 1, memory 2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=5.0, help="hostile: the deadline")
    arguments = parser.parse_args()
    arguments.workers = arguments.workers or {"throughput": 1, "hostile": 4, "memory": 2}[arguments.what]
    arguments.count = arguments.count or {"throughput": 20_000, "hostile": 512, "memory": 200_000}[arguments.what]
    run = {"throughput": throughput, "hostile": hostile_batch, "memory": memory}[arguments.what]
    print(json.dumps({"benchmark": f"reward_isolation {arguments.what}", **run(arguments)}))


if __name__ == "__main__":
    main()
