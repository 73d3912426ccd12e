import subprocess
import sys

from corerl.plugins import load_plugins
from corerl_hf.backend import HfBackend
from corerl_hf.options import HfOptions


def test_the_backend_is_found_by_name_with_its_options():
    selected = load_plugins().registries.rollout_backends.select({"name": "hf", "max_batch_size": 64})
    assert selected.entry.load() is HfBackend
    assert selected.options == HfOptions(max_batch_size=64, max_prefill_tokens=None)


def test_the_command_is_found_by_name():
    assert load_plugins().registries.commands.get("tiny-model").load().name == "tiny-model"


def test_registering_and_the_commands_help_import_no_torch():
    script = "import sys, corerl_hf.plugin, corerl_hf.tiny_model; print({'torch', 'transformers'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
