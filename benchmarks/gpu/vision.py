"""Models that read images: an update's share of the bare matrix rate, and log-probs of engines beside the trainer's.

    python benchmarks/gpu/vision.py update --profile
    python benchmarks/gpu/vision.py agreement --backend vllm --python .venv-vllm/bin/python

``update`` (about 100 s): strategy ``fsdp`` on one GPU, a shape of Qwen3-VL-2B (``--shape qwen2.5-vl-3b`` needs an H200)
with random weights, 24 rows of one image of 448 × 448 pixels, 128 tokens of text and 512 of response, each row with its
own image; bf16, gradient checkpointing, micro-batches of 16,384 tokens. FLOPs are those of the model: 6 N a token of
the language model, with causal attention; of the trained tower 6 N a patch, the mergers at each output, and
12 · hidden · (patches that a patch sees) a patch and layer of attention (of a frozen tower: a third). ``waits``: times
that the host waits for the device in one update. Exit code 1: the first variant is below ``--least``.

``agreement`` (about 90 s): a model of 8 layers, 16 images of 448 × 448 pixels, 4 responses of 64 tokens to each, and as
many prompts of text; differences of the engine's log-probs from those of strategy ``torch``, before and after an update
of all weights. Exit code 1: the mean difference of rows with images is above ``--most`` or three times that of text.

With ``--device cpu`` both run on tiny models.
"""

import argparse
import asyncio
import dataclasses
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import idle
import numpy as np
import torch
from fsdp_update import as_before, few_threads, profile
from rich.console import Console
from rich.table import Table

from corerl.contracts.config import ModelConfig, OptimConfig, RolloutConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.contracts.token_columns import TokenColumn, TokenValues
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.objective import PolicyObjective, loss_weights
from corerl.plugins import load_plugins
from corerl_fsdp.options import FsdpOptions, TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_grpo.losses.options import VanillaOptions
from corerl_grpo.losses.vanilla import vanilla
from corerl_torch import media_store, tower
from corerl_torch.throughput import training_flops
from corerl_vision.tiny_model import TinyVision, write_tiny_model
from corerl_vision.tokenizer import VisionTokenizer, load_vision_tokenizer

PIXELS, TEXT, RESPONSE = 448, 128, 512

TEXT_CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3-vl-2b": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]},
    },
    "qwen2.5-vl-3b": {
        "hidden_size": 2048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
    },
}
TOWERS: dict[str, dict[str, Any]] = {
    "qwen3-vl-2b": {
        "depth": 24,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_heads": 16,
        "patch_size": 16,
        "out_hidden_size": 2048,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [5, 11, 17],
    },
    "qwen2.5-vl-3b": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "patch_size": 14,
        "out_hidden_size": 2048,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    },
}
SMALL = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 152_000}

VARIANTS: dict[str, tuple[str, bool]] = {
    "compiled": ("default", True),
    "compiled, before": ("default", True),
    "eager": ("force_eager", True),
    "eager, transformers' attention in the tower": ("force_eager", False),
}
"""stance of torch.compile, attention of the tower in one call a layer; ``before``: positions of images are found in
each pass, weights are gathered in each micro-batch, and gradients within the limit are multiplied by 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["update", "agreement"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--shape", choices=TOWERS, default="qwen3-vl-2b")
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--freeze", action="store_true", help="freeze the tower")
    parser.add_argument("--no-checkpointing", action="store_true", help="recompute nothing")
    parser.add_argument("--profile", action="store_true", help="the kernels that take most of the time, too")
    parser.add_argument("--least", type=float, default=0.4, help="share of the rate of bare matrix products")
    parser.add_argument("--backend", choices=["vllm", "sglang", "hf"], default="vllm")
    parser.add_argument("--python", help="interpreter of the engine")
    parser.add_argument("--families", nargs="*", default=["qwen2_5_vl", "qwen3_vl"])
    parser.add_argument("--most", type=float, default=0.02, help="mean difference of log-probs")
    asked = parser.parse_args()
    few_threads()
    os.environ.setdefault(media_store.VARIABLE, tempfile.mkdtemp(prefix="corerl-media-"))
    sys.exit(update(asked) if asked.what == "update" else agreement(asked))


def config_of(shape: str, device: str) -> Any:
    """A published config, or a tiny one on the CPU."""
    import transformers

    kind = transformers.Qwen3VLConfig if shape.startswith("qwen3") else transformers.Qwen2_5_VLConfig
    text = {"vocab_size": 151_936, "tie_word_embeddings": True, "dtype": "bfloat16", **TEXT_CONFIGS[shape]}
    vision = dict(TOWERS[shape])
    if device == "cpu":
        text |= SMALL | {"num_attention_heads": 1, "num_key_value_heads": 1}
        changed = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 128}
        vision |= changed | {
            name: [1] for name in ("fullatt_block_indexes", "deepstack_visual_indexes") if name in vision
        }
    ids: dict[str, Any] = {"image_token_id": 151_655, "vision_start_token_id": 151_652, "vision_end_token_id": 151_653}
    return kind(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)


def update(asked: argparse.Namespace) -> int:
    """Returns the exit code."""
    config, strategy = config_of(asked.shape, asked.device), None
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        began = time.perf_counter()
        strategy = strategy_of(folder, asked)
        print(f"model built in {time.perf_counter() - began:.1f} s", flush=True)
    vision = config.vision_config
    batch = random_batch(asked.rows if asked.device == "cuda" else 2, vision)
    patches = (PIXELS // vision.patch_size) ** 2
    language, seen = flops(strategy, batch, patches, trained=not asked.freeze)
    print(f"{language / 1e12:.1f} TFLOP of the language model, {seen / 1e12:.1f} of the tower", flush=True)
    results = [measure(strategy, batch, name, language + seen, asked) for name in asked.variants]
    table = Table(
        "variant", "s", "TFLOP/s", "matrix product", "share", "waits", "peak GiB", "first s", title=asked.shape
    )
    for each in results:
        numbers = [f"{each[name]:.{digits}f}" for name, digits in (("seconds", 3), ("tflops", 0), ("bare", 0))]
        rest = [f"{each['share']:.1%}", str(each["waits"]), f"{each['peak']:.1f}", f"{each['first']:.0f}"]
        table.add_row(each["variant"], *numbers, *rest)
    Console(width=120).print(table)
    return int(asked.device == "cuda" and results[0]["share"] < asked.least)


def strategy_of(folder: str, asked: argparse.Namespace) -> Any:
    model = ModelConfig(
        folder, load_format="dummy", dtype="bf16", enable_gradient_checkpointing=not asked.no_checkpointing
    )
    limit = MicroBatching(max_tokens=16_384)
    spec = StrategySpec(model, asked.device, limit, OptimConfig(lr=1e-6), total_steps=1000)
    if asked.device == "cpu":
        return SingleDeviceStrategy(spec, TorchOptions(use_remove_padding=True, freeze_vision_tower=asked.freeze))
    from corerl_fsdp.fsdp import FsdpStrategy

    return FsdpStrategy(spec, FsdpOptions(compile=True, freeze_vision_tower=asked.freeze))


def random_batch(rows: int, vision: Any) -> Experience:
    """Rows that begin with an image each, with all that the policy's loss reads."""
    rng = np.random.default_rng(0)
    side = PIXELS // vision.patch_size
    tokens, width = side * side // vision.spatial_merge_size**2, 3 * 2 * vision.patch_size**2
    prompts, columns = [], []
    for row in range(rows):
        digest = bytes([row]) * media_store.DIGEST_BYTES
        pixels = rng.standard_normal((side * side, width), dtype=np.float32)
        grid = np.array([[1, side, side]])
        media_store.put(
            digest, {"pixel_values": pixels, "image_grid_thw": grid, media_store.PLACEHOLDERS: np.arange(tokens)}
        )
        prompts.append([151_652, *[151_655] * tokens, 151_653, *rng.integers(0, 150_000, TEXT).tolist()])
        counts = np.zeros(len(prompts[-1]), np.int32)
        counts[1] = 1
        columns.append(TokenValues(np.frombuffer(digest, np.uint8)[None], counts).widened(RESPONSE))
    batch = collate(prompts, rng.integers(0, 150_000, (rows, RESPONSE)).tolist(), list(range(rows)))
    batch.columns[media_store.COLUMN] = TokenColumn.collate(columns, batch.lengths.tolist())
    batch.old_log_probs = torch.full(batch.response_mask.shape, -11.93)
    batch.advantages = torch.randn(rows, 1).expand(batch.response_mask.shape).contiguous()
    batch.loss_weights = loss_weights(batch.response_mask, "token-mean")
    return batch


def flops(strategy: Any, batch: Experience, patches: int, *, trained: bool) -> tuple[float, float]:
    """(language model, tower) of an update; see the top of this file."""
    body = strategy.token_model.images.body
    whole = strategy.shape()
    own = dict(body.visual.named_parameters())
    sizes = {name: each.numel() for name, each in own.items() if "pos_embed" not in name}
    at_outputs = sum(size for name, size in sizes.items() if "merger" in name) / body.visual.spatial_merge_size**2
    each_patch = sum(size for name, size in sizes.items() if "merger" not in name) + at_outputs
    config = body.visual.config
    whole_image = getattr(config, "fullatt_block_indexes", None)
    windowed = 0 if whole_image is None else config.depth - len(whole_image)
    window = (getattr(config, "window_size", 0) // config.patch_size) ** 2
    keys = windowed * window + (config.depth - windowed) * patches
    parameters = whole.parameters - sum(each.numel() for each in own.values())
    language = dataclasses.replace(whole, parameters=parameters)
    seen = len(batch) * patches * (6 * each_patch + 12 * config.hidden_size * keys)
    return training_flops(language, batch.lengths.tolist()), seen if trained else seen / 3


def measure(strategy: Any, batch: Experience, name: str, work: float, asked: argparse.Namespace) -> dict[str, Any]:
    """Medians of some updates, with the rate of a bare matrix product measured between them."""
    stance, in_one_call = VARIANTS[name]
    on_gpu = asked.device == "cuda"
    torch.compiler.set_stance(stance)
    visual = strategy.token_model.images.body.visual
    if on_gpu:
        visual.config._attn_implementation = tower.NAME if in_one_call else "sdpa"
    objective = PolicyObjective(functools.partial(vanilla, options=VanillaOptions()))
    before, images = name.endswith("before"), strategy.token_model.images
    as_before(strategy, before)

    def once() -> float:
        if before:
            images._known = Forgetful()
        began = time.perf_counter()
        strategy.update(batch, objective)
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    first = once()
    once()
    waits = sum(idle.waits(once).values()) if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    seconds, products = [], []
    for _ in range(asked.repeats if on_gpu else 1):
        seconds.append(once())
        products.append(matrix_product(asked.device))
    if asked.profile and on_gpu:
        profile(once)
    rate, bare = work / statistics.median(seconds) / 1e12, statistics.median(products)
    peak = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
    found = {"variant": name, "seconds": statistics.median(seconds), "tflops": rate, "bare": bare, "first": first}
    found |= {"share": rate / bare, "waits": waits, "peak": peak}
    print(json.dumps(found), flush=True)
    return found


class Forgetful(dict[Any, Any]):
    """Positions that are not remembered from one row to the next."""

    def __setitem__(self, key: Any, value: Any) -> None:
        self.clear()
        super().__setitem__(key, value)


def matrix_product(device: str) -> float:
    """TFLOP/s of a bf16 product of square matrices of random numbers."""
    size, times = (8192, 10) if device == "cuda" else (256, 1)
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        left @ right
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        left @ right
    if device == "cuda":
        torch.cuda.synchronize()
    return 2 * size**3 * times / (time.perf_counter() - began) / 1e12


def agreement(asked: argparse.Namespace) -> int:
    """Returns the exit code."""
    table = Table("family", "weights", "rows", "mean", "largest", "s", title=f"{asked.backend}: |log-prob - trainer's|")
    worst = 0
    for family in asked.families:
        for weights, differences, seconds in compared(family, asked):
            for rows, values in differences.items():
                numbers = f"{float(values.mean()):.5f}", f"{float(values.max()):.4f}", f"{seconds:.1f}"
                table.add_row(family, weights, rows, *numbers)
            mean, text = (float(differences[name].mean()) for name in ("images", "text"))
            worst |= int(mean > max(asked.most, 3 * text) or not np.isfinite(mean))
    Console(width=110).print(table)
    return worst


def compared(family: str, asked: argparse.Namespace) -> list[tuple[str, dict[str, torch.Tensor], float]]:
    """(weights, kind of row -> differences of its tokens, seconds of generation)."""
    small = asked.device == "cpu"
    sizes: dict[str, Any] = {"hidden_size": 128} if small else {"hidden_size": 1024, "layers": 8, "heads": 8}
    side = 64 if small else PIXELS
    sizes |= {"patch_size": 8 if small else 14 if family == "qwen2_5_vl" else 16, "most_pixels": side * side}
    folder = Path(tempfile.mkdtemp(prefix="corerl-vision-")) / family
    write_tiny_model(folder, TinyVision(family, **sizes))
    model = ModelConfig(str(folder), dtype="fp32" if small else "bf16")
    tokenizer = load_vision_tokenizer(model)
    assert tokenizer is not None
    requests = requests_of(tokenizer, images=2 if small else 16, side=side, small=small)
    options: dict[str, Any] = {} if asked.backend == "hf" else {"max_model_len": 4096, "gpu_memory_utilization": 0.3}
    options |= {} if asked.python is None else {"python": asked.python}
    selected = load_plugins().registries.rollout_backends.select({"name": asked.backend, **options})
    backend: Any = selected.load()(model, RolloutConfig(name=asked.backend), device=asked.device)
    spec = StrategySpec(model, asked.device, MicroBatching(max_tokens=16_384), OptimConfig(lr=1e-4))
    policy = SingleDeviceStrategy(spec, TorchOptions(use_remove_padding=True))
    found = []
    try:
        if hasattr(backend, "started"):
            backend.started()
        for version, name in enumerate(("loaded", "updated")):
            if version:
                with torch.no_grad():
                    for parameter in policy.model.parameters():
                        parameter.mul_(1.2)
                backend.update_weights(policy.weights(), version)
            began = time.perf_counter()
            outputs = asyncio.run(backend.generate(requests))
            seconds = time.perf_counter() - began
            found.append((name, differences_of(policy, requests, outputs), seconds))
    finally:
        backend.close()
    return found


def requests_of(tokenizer: VisionTokenizer, *, images: int, side: int, small: bool) -> list[GenerationRequest]:
    """Prompts with an image each, and as many of text."""
    from PIL import Image

    rng = np.random.default_rng(0)
    sampling = SamplingParams(8 if small else 64, n=2 if small else 4, ignore_eos=True)
    requests, described = [], 0
    for number in range(2 * images):
        picture = [Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8))] if number < images else []
        content = "<image>" * len(picture) + f"question {number}: what is shown?"
        given = {media_store.COLUMN: picture} if picture else {}
        messages, media = tokenizer.place_media([{"role": "user", "content": content}], given, "a row")
        ids, columns = tokenizer.encode_media(
            tokenizer.render(messages, "a row", add_generation_prompt=True), media, ""
        )
        requests.append(GenerationRequest(str(number), ids, sampling, columns))
        if picture:
            from corerl_engines.images import described_images

            described += len(json.dumps(described_images(requests[-1])))
    pixels = sum(path.stat().st_size for path in media_store.folder().glob("*/*"))
    print(f"{images} images: {pixels:,} bytes in files, {described:,} bytes in requests", flush=True)
    return requests


def differences_of(
    policy: SingleDeviceStrategy, requests: list[GenerationRequest], outputs: list[Any]
) -> dict[str, torch.Tensor]:
    rows = [
        (request, each)
        for request, samples in zip(requests, outputs, strict=True)
        for each in request.with_media(samples)
    ]
    batch = collate(
        [request.prompt_ids for request, _ in rows],
        [each.token_ids for _, each in rows],
        list(range(len(rows))),
        log_probs=[each.log_probs for _, each in rows],
    )
    columns = [each.columns.get(media_store.COLUMN) for _, each in rows]
    batch.columns[media_store.COLUMN] = TokenColumn.collate(columns, batch.lengths.tolist())
    found = policy.forward(batch, {"log_probs"}).log_probs
    assert found is not None and batch.rollout_log_probs is not None
    off = (found.cpu() - batch.rollout_log_probs).abs()
    has_images = torch.tensor([bool(request.media) for request, _ in rows])[:, None]
    kinds = {"images": has_images, "text": ~has_images}
    return {name: off[batch.response_mask & kind] for name, kind in kinds.items()}


if __name__ == "__main__":
    main()
