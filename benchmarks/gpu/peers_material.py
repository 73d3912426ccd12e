"""Files of the job of benchmarks/gpu/peers.py: a model with random weights, and prompts of one length."""

import json
from pathlib import Path
from typing import Any

from peers_verl import Job

from corerl_testing.published_shapes import named_shapes


def write_weights(config: Any, folder: Path) -> None:
    """Random weights in bfloat16 beside a config: norms 1, biases 0, all else of deviation 0.02."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    tensors = {}
    for name, shape in named_shapes(config):
        if name.endswith("bias"):
            tensors[name] = torch.zeros(shape, dtype=torch.bfloat16)
        elif "norm" in name:
            tensors[name] = torch.ones(shape, dtype=torch.bfloat16)
        else:
            tensors[name] = torch.empty(shape, dtype=torch.float32).normal_(std=0.02).to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def of_length(text: str, tokenizer: Any, length: int) -> list[dict[str, str]]:
    """A message that has so many tokens under the chat template, cut from the text."""

    def message(words: list[str], end: str = "") -> list[dict[str, str]]:
        return [{"role": "user", "content": " ".join(words) + end}]

    def tokens(messages: list[dict[str, str]]) -> int:
        whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return len(tokenizer(whole, add_special_tokens=False)["input_ids"])

    words = text.split()
    kept = next(count for count in range(len(words), -1, -1) if tokens(message(words[:count])) <= length)
    for end in (" a" * missing for missing in range(length)):
        if tokens(message(words[:kept], end)) == length:
            return message(words[:kept], end)
    raise SystemExit(f"no part of the prompt {text[:40]!r} has {length} tokens under the chat template; take another")


def write_prompts(rows: Path, model: Path, job: Job, folder: Path) -> None:
    """Prompts of one length: JSON lines for TRL, and the columns that verl reads."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [row["prompt"][-1]["content"] for row in pq.read_table(rows).slice(0, job.prompts * job.steps).to_pylist()]
    prompts = [of_length(text, tokenizer, job.prompt_length) for text in texts]
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": each}) + "\n" for each in prompts))
    columns = [
        {
            "data_source": "peers",
            "prompt": prompt,
            "ability": "none",
            "reward_model": {"style": "rule", "ground_truth": "0"},
            "extra_info": {"index": index},
        }
        for index, prompt in enumerate(prompts)
    ]
    pq.write_table(pa.Table.from_pylist(columns), folder / "prompts.parquet")


def write_model(given: Path, folder: Path, tiny: bool) -> Path:
    """A shape's folder with weights, for contenders that read some."""
    from transformers import AutoConfig

    model = folder / "model"
    model.mkdir()
    for file in given.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    if tiny:
        values = json.loads((given / "config.json").read_text())
        small = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "layer_types": None}
        small |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 4096, "max_window_layers": 2}
        (model / "config.json").write_text(json.dumps(values | small))
    write_weights(AutoConfig.from_pretrained(model), model)
    return model
