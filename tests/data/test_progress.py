import subprocess
import sys

import pytest

from corerl.data.progress import batches


def test_batches_hold_every_item_once_and_draw_nothing_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    slices = [list(batch) for batch in batches(range(2500), "numbers")]
    assert [len(batch) for batch in slices] == [512, 512, 512, 512, 452]
    assert [item for batch in slices for item in batch] == list(range(2500))
    assert capfd.readouterr() == ("", "")


def test_reading_data_imports_neither_torch_nor_transformers() -> None:
    modules = ("files", "prompts", "sampler", "schema", "tokenizer")
    code = "; ".join(
        [
            "import sys",
            *(f"import corerl.data.{name}" for name in modules),
            "print({'torch', 'transformers'} & {*sys.modules})",
        ]
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
