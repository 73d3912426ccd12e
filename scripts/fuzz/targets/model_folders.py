"""Model folders: tokenizer, chat template, generation config, config."""

import json
import shutil
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from corerl.contracts.config import ModelConfig
from corerl.data.report import Location
from corerl.data.tokenizer import load_tokenizer
from corerl.errors import CoreRLError
from corerl_testing.tiny_model import tiny_model
from scripts.fuzz import mutations

FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json")
TEMPLATES = (
    *("{{ 'a' * 10**11 }}", "{{ 'a' * 10**8 }}", "{{ ''.__class__.__mro__ }}", "{{ self.__init__.__globals__ }}"),
    *("{{ raise_exception.__globals__['os'].system('true') }}", "{{ '{0.__class__}'.format(messages) }}"),
    *("{% include '/etc/passwd' %}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{", "", "{% for"),
    *("{{ raise_exception('\x1b[31m') }}", "{{ " + "(" * 5000 + ")" * 5000 + " }}", "{{ messages.clear() }}"),
    *(
        "{{ messages|attr('__class__') }}",
        "{{ namespace(a=1).__dict__ }}",
        "\ud800",
        "{{ 1/0 }}",
        "{{ cycler.__init__ }}",
    ),
)
CHAT: Any = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]


class ModelFolders:
    """See :class:`scripts.fuzz.targets.Target`."""

    name, seconds, processes = "model-folders", 30.0, False
    cases = st.one_of(
        st.tuples(st.sampled_from(FILES), st.tuples(st.just("tree"), mutations.edits)),
        st.tuples(st.sampled_from(FILES), st.tuples(st.just("bytes"), mutations.cuts)),
        st.tuples(st.sampled_from(FILES), st.tuples(st.just("text"), st.sampled_from(sorted(mutations.DEEP)))),
        st.tuples(st.just("chat_template.jinja"), st.tuples(st.just("template"), st.sampled_from(TEMPLATES))),
    )

    def prepare(self, folder: Path) -> None:
        self.made = folder / "model"
        shutil.copytree(tiny_model(), self.made)

    def read(self, case: Any, folder: Path) -> None:
        name, (kind, given) = case
        model = folder / "model"
        shutil.copytree(self.made, model)
        content = (model / name).read_bytes() if (model / name).is_file() else b"{}"
        if kind == "tree":
            content = json.dumps(mutations.changed(json.loads(content), given)).encode()
        elif kind == "bytes":
            content = mutations.damaged(content, given)
        else:
            content = (mutations.DEEP[given] if kind == "text" else given).encode(errors="surrogatepass")
        (model / name).write_bytes(content)
        try:
            tokenizer = load_tokenizer(ModelConfig(str(model)))
            tokenizer.end_of_turn_fault()
            tokenizer.encode([tokenizer.render(CHAT, Location("f", 0), add_generation_prompt=True)])
        except CoreRLError as error:
            assert "\n" not in str(error), error
            raise
