"""A model's tokenizer with its chat template, and the token ids that a run needs to know."""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corerl.contracts.config import ModelConfig
from corerl.contracts.options import did_you_mean
from corerl.contracts.tokenizers import MediaTokenizer
from corerl.errors import ConfigError, DataError, ModelError
from corerl.files import read_text
from corerl_check.hub import look_for_hub
from corerl_torch.bounded import bounded
from corerl_torch.control_tokens import MARK, ControlTokens
from corerl_torch.messages import normalized, own_medium
from corerl_torch.tool_calls import are_texts, with_arguments

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


LARGEST_ID = 2**31
LONGEST_CHAT = 20_000_000
"""characters of a chat: the tokenizer ends the process if it finds no memory"""
TEMPLATE_SECONDS, TEMPLATE_BYTES = 20.0, 2**30
"""of computing that a chat may take, and by which the process may grow meanwhile"""
MOST_PARTS = {"layer": 10_000, "layers": 10_000, "experts": 100_000}
"""of a model: transformers makes an object of each layer before it looks at anything else; Doge has 16,384 experts"""

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
"""of models that read images"""

_OPENED, _OPENING_TOKENS = re.compile(r"<think>\s*\Z"), 16
_TAG_OF_REASONING = re.compile(r"</?think>")
_OWN_ARGUMENTS = {"conversation", "tokenize", "add_generation_prompt", "continue_final_message", "return_dict"}


@dataclass(frozen=True)
class HFTokenizer:
    """A tokenizer that is known to have a chat template and an end-of-sequence token.

    Attributes:
        model: the config that names it.
        tokenizer: the Hugging Face tokenizer.
        template_source: where its chat template comes from, for error messages.
        stops: tokens that end a response by the files, the end-of-sequence token first.
    """

    model: ModelConfig
    tokenizer: "PreTrainedTokenizerBase"
    template_source: str
    stops: tuple[int, ...]

    @cached_property
    def stop_token_ids(self) -> tuple[int, ...]:
        """See :class:`corerl.contracts.tokenizers.ChatTokenizer`."""
        return tuple(sorted(self.stops, key=lambda token_id: token_id != self.end_of_turn_id))

    @cached_property
    def end_of_turn_id(self) -> int:
        """The token with which the chat template ends an assistant's turn, also if it stops no generation.

        Otherwise a stop token with which the template begins the next turn, or the end-of-sequence token.
        """
        with suppress(DataError, ModelError):
            if end := self._special_token_behind_turn():
                return self.special_tokens[end]
            next_turn = self._special_token_behind_turn({"role": "user", "content": "?"})
            if next_turn and self.special_tokens[next_turn] in self.stops:
                return self.special_tokens[next_turn]
        return self.stops[0]

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        location: object,
        *,
        add_generation_prompt: bool,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """See :meth:`corerl.contracts.tokenizers.ChatTokenizer.render`."""
        given = dict(template_kwargs or {})
        for key in _OWN_ARGUMENTS & given.keys():
            raise ConfigError(
                f"data.apply_chat_template_kwargs.{key}", "is set by CoreRL and no variable of a template"
            )
        made = with_arguments(normalized(messages, location), as_text=self._arguments_are_texts)
        if not isinstance(self, MediaTokenizer) and (medium := own_medium(made)):
            raise DataError(f"{location}: has an {medium}, and the model's tokenizer reads text alone")
        marked = self._control_tokens.mark_messages(made)
        if given.get("tools"):
            given["tools"] = self._control_tokens.mark(given["tools"])
        if not (all(isinstance(each.get("content", ""), str) for each in made) or self._takes_parts):
            raise DataError(f"{location}: the chat template of {self.template_source} takes texts alone, and no parts")
        return self._apply(marked, location, add_generation_prompt=add_generation_prompt, **given)

    def _apply(self, messages: Sequence[Mapping[str, Any]], location: object, **given: Any) -> str:
        """The chat template's text."""
        try:
            with bounded(TEMPLATE_SECONDS, TEMPLATE_BYTES):
                text = self.tokenizer.apply_chat_template([dict(each) for each in messages], tokenize=False, **given)
        except Exception as error:
            reason = self.unmarked(" ".join(str(error).split()))
            raise DataError(f"{location}: the chat template of {self.template_source} fails ({reason})") from error
        assert isinstance(text, str)
        if len(text) > LONGEST_CHAT:
            made = f"{len(text):,} characters, {LONGEST_CHAT:,} at most"
            raise DataError(f"{location}: the chat template of {self.template_source} fails (it makes {made})")
        return text

    def marked(self, text: str) -> str:
        """A text of a message, with marks in the control tokens that it spells, for :meth:`encode`."""
        marked: str = self._control_tokens.mark(text)
        return marked

    def unmarked(self, text: str) -> str:
        """See :meth:`corerl.contracts.tokenizers.ChatTokenizer.unmarked`."""
        return text.replace(MARK, "")

    def spelled(self, text: str) -> Mapping[str, int]:
        """See :meth:`corerl.contracts.tokenizers.ChatTokenizer.spelled`."""
        return self._control_tokens.spelled(text)

    def opening(self, token_ids: Sequence[int]) -> str:
        """See :meth:`corerl.contracts.tokenizers.ChatTokenizer.opening`."""
        [end] = self.decode([token_ids[-_OPENING_TOKENS:]], skip_special_tokens=False)
        found = _OPENED.search(end)
        return "" if found is None else found[0]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See :meth:`corerl.contracts.tokenizers.ChatTokenizer.encode`."""
        concerned = [self._control_tokens.concerns(text) for text in texts]
        plain = iter(self._encode([text for text, marked in zip(texts, concerned, strict=True) if not marked]))
        return [
            self._encode_marked(text) if marked else next(plain) for text, marked in zip(texts, concerned, strict=True)
        ]

    def _encode_marked(self, text: str) -> list[int]:
        ids = self._control_tokens.encode(text)
        if ids is not None:
            return ids
        ids = []
        for piece in self._control_tokens.pieces(text):
            ids += [piece] if isinstance(piece, int) else (self.encode_inside if ids else self._encode)([piece])[0]
        return ids

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        try:
            encoding = self.tokenizer(
                list(texts),
                add_special_tokens=False,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )
        except (TypeError, ValueError, AttributeError) as error:  # of tokenizer_config.json, read when it is needed
            raise ModelError(f"the tokenizer of {self.tokenizer.name_or_path} fails: {_first_line(error)}") from error
        ids: list[list[int]] = encoding["input_ids"]
        return ids

    def encode_inside(self, texts: Sequence[str]) -> list[list[int]]:
        """As :meth:`encode`, for texts from the middle of a chat: no space is put before them."""
        return self._encode_behind_newline(texts) if self._puts_space_first else self.encode(texts)

    def decode(self, token_ids: Sequence[Sequence[int]], *, skip_special_tokens: bool = True) -> list[str]:
        """The text of each row of token ids; tags of reasoning are text, also if they are special tokens."""
        if skip_special_tokens and self._hidden is not None:
            token_ids = [[token_id for token_id in ids if token_id not in self._hidden] for ids in token_ids]
            skip_special_tokens = False
        if self._decodes_plainly:
            one = self.tokenizer.backend_tokenizer.decode
            return [one(list(ids), skip_special_tokens=skip_special_tokens) for ids in token_ids]
        texts: list[str] = self.tokenizer.batch_decode(
            [list(ids) for ids in token_ids],
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return texts

    def model_files(self) -> dict[str, bytes]:
        """Name -> content of the model's files beside weights: config, generation config, tokenizer."""
        from transformers import AutoConfig, GenerationConfig

        path, trust = str(Path(self.model.path).expanduser()), self.model.trust_remote_code
        with tempfile.TemporaryDirectory() as folder:
            AutoConfig.from_pretrained(path, trust_remote_code=trust).save_pretrained(folder)
            with suppress(OSError):  # a model may have none
                GenerationConfig.from_pretrained(path).save_pretrained(folder)
            self.save(Path(folder))
            return {file.name: file.read_bytes() for file in Path(folder).iterdir() if file.is_file()}

    def save(self, folder: Path) -> None:
        """Write the tokenizer, and the settings of the model's image processor if it has one."""
        self.tokenizer.save_pretrained(folder)
        for name in PROCESSOR_FILES:
            if (file := _model_file(self.model.path, name)) is not None:
                (folder / name).write_bytes(file.read_bytes())

    def unheeded_end_of_turn(self) -> str | None:
        """The special token with which the chat template ends an assistant's turn, where it stops no generation."""
        end = self._special_token_behind_turn()
        return end if end and self.special_tokens[end] not in self.stops else None

    def _special_token_behind_turn(self, *further: Mapping[str, Any]) -> str | None:
        """The special token behind an assistant's turn, which these messages follow; None if there is another text."""
        probe = "corerl"
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": probe}, *further]
        text = self.render(messages, "a probe", add_generation_prompt=False)
        if not text.strip():
            raise ModelError(
                f"the chat template of {self.template_source} is empty; name another with model.chat_template"
            )
        after = text.rpartition(probe)[2].lstrip()
        return max((token for token in self.special_tokens if after.startswith(token)), key=len, default=None)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Text -> id of the special tokens."""
        added = self.tokenizer.added_tokens_decoder
        return {token.content: token_id for token_id, token in added.items() if token.special}

    @cached_property
    def _hidden(self) -> frozenset[int] | None:
        """The special tokens that texts lack; None: all of them, as no tag of reasoning is among them."""
        hidden = {token_id for text, token_id in self.special_tokens.items() if not _TAG_OF_REASONING.fullmatch(text)}
        return frozenset(hidden) if len(hidden) < len(self.special_tokens) else None

    def end_of_turn_fault(self) -> str | None:
        """See :meth:`corerl.contracts.tokenizers.ChatTokenizer.end_of_turn_fault`."""
        end = self.unheeded_end_of_turn()
        ask: Mapping[str, Any] = {"role": "user", "content": "?"}
        if self._stops_behind(ask, {"role": "assistant", "content": "corerl"}) or (
            self._stops_behind(ask, {"role": "assistant", "content": "corerl"}, ask)  # by the next turn's first token
        ):
            return None
        what = "no special token" if end is None else f"{end}, which is not among the model's stop tokens"
        return (
            f"the chat template ends a turn with {what}: responses may never end (set eos_token in "
            "tokenizer_config.json, or eos_token_id in generation_config.json)"
        )

    def _stops_behind(self, *messages: Mapping[str, Any]) -> bool:
        """Whether a stop token follows the assistant's content."""
        try:
            text = self.render(messages, "a probe", add_generation_prompt=False)
        except DataError:
            return False
        known = {**self.tokenizer.get_added_vocab(), str(self.tokenizer.eos_token): self.stop_token_ids[0]}
        stops = tuple(token for token, token_id in known.items() if token_id in self.stop_token_ids)
        return text.rpartition("corerl")[2].strip().startswith(stops)

    @cached_property
    def _control_tokens(self) -> ControlTokens:
        turns = [{"role": role, "content": "corerl"} for role in ("user", "assistant", "user")]
        try:
            framed = self._apply(turns, "a probe")
        except DataError:
            framed = ""
        templates = self.tokenizer.chat_template  # of chats, perhaps of chats with tools too
        return ControlTokens(self.tokenizer, str(templates), framed, self.model.allowed_special)

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the chat template writes the texts of parts, and not Python."""
        parts = [{"type": "text", "text": "corerl"}]
        try:
            return "{'type'" not in self._apply([{"role": "user", "content": parts}], "a probe")
        except DataError:
            return False

    @cached_property
    def _arguments_are_texts(self) -> bool:
        return are_texts(lambda messages: self._apply(messages, "a probe"))

    @cached_property
    def vocabulary_size(self) -> int | None:
        """See :class:`corerl.contracts.tokenizers.SizedTokenizer`."""
        return _vocabulary_size(self.model.path)

    @cached_property
    def _decodes_plainly(self) -> bool:
        """Decoding is that of the tokenizers library; transformers would look at every token id beforehand."""
        from transformers import PreTrainedTokenizerFast

        names = ("batch_decode", "decode", "_decode")
        own = [getattr(type(self.tokenizer), name, None) for name in names]
        return own == [getattr(PreTrainedTokenizerFast, name, None) for name in names]

    @cached_property
    def _puts_space_first(self) -> bool:
        """SentencePiece tokenizers of the Llama 2 kind write a space before whatever they encode."""
        [plain], [inside] = self.encode(["a"]), self._encode_behind_newline(["a"])
        return bool(inside) and inside != plain

    def _encode_behind_newline(self, texts: Sequence[str]) -> list[list[int]]:
        skip = len(self.encode(["\n"])[0])
        return [ids[skip:] for ids in self.encode([f"\n{text}" for text in texts])]


def load_tokenizer(model: ModelConfig) -> HFTokenizer:
    """Load the tokenizer of ``model.tokenizer_path`` or ``model.path``; a local folder never touches the network.

    Raises:
        ModelError: no such folder, no tokenizer in it, no chat template, or no end-of-sequence token.
        ConfigError: ``model.chat_template`` names no file, ``model.tokenizer_path`` another model's tokenizer, or
            ``model.allowed_special`` a token that there is not.
    """
    source = model.tokenizer_path or model.path
    where = f"model.{'tokenizer_path' if model.tokenizer_path else 'path'}: {source}"
    tokenizer = _load(source, where, model.trust_remote_code)
    if model.tokenizer_path is not None:
        _check_belongs(tokenizer, model)
    template_source = source
    if model.chat_template is not None:
        tokenizer.chat_template = _read_template(model.chat_template)
        template_source = model.chat_template
    try:
        tokenizer.get_chat_template()
    except ValueError as error:
        raise ModelError(
            f"{where}: its tokenizer has no chat template; name a Jinja file with model.chat_template"
        ) from error
    known = ["all", *(token.content for token in tokenizer.added_tokens_decoder.values())]
    for token in model.allowed_special:
        if token not in known:
            raise ConfigError("model.allowed_special", f"{source} has no token {token!r}{did_you_mean(token, known)}")
    if tokenizer.eos_token_id is None:
        raise ModelError(f"{where}: its tokenizer has no eos token; set eos_token in tokenizer_config.json")
    stops = tuple(dict.fromkeys([tokenizer.eos_token_id, *_generation_eos_token_ids(model.path)]))
    return HFTokenizer(model, tokenizer, template_source, stops)


def check_parts(folder: Path) -> None:
    """Refuse a model folder whose config.json names more layers or experts than any model has.

    Raises:
        ModelError: it does; a file that cannot be read is left to its reader.
    """
    try:
        facts = json.loads(read_text(folder / "config.json"))
    except (OSError, ValueError, RecursionError):
        return
    for part in (facts, *(facts.values() if isinstance(facts, dict) else ())):
        for key, value in part.items() if isinstance(part, dict) else ():
            most = MOST_PARTS.get(key.rpartition("_")[2])
            if most is not None and type(value) is int and value > most:
                raise ModelError(f"{folder}/config.json: {key} is {value:,}; a model has {most:,} at most")


def _load(source: str, where: str, trust_remote_code: bool) -> "PreTrainedTokenizerBase":
    folder = _local_folder(source, where)
    if folder is not None:
        check_parts(folder)
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ModelError(f"{where}: reading a tokenizer needs transformers: pip install transformers") from error
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(folder or source), trust_remote_code=trust_remote_code, local_files_only=folder is not None
        )
    except Exception as error:
        if folder and not any((folder / name).is_file() for name in ("config.json", "tokenizer_config.json")):
            raise ModelError(f"{where}: is no model folder: it holds no config.json") from error
        what = "has no tokenizer that can be read" if folder else "is no folder here and cannot be had from the hub"
        raise ModelError(f"{where}: {what} ({why(error)})") from error
    # transformers makes an empty tokenizer for a known architecture when the folder holds no vocabulary.
    if len(tokenizer) <= len(tokenizer.added_tokens_decoder):
        raise ModelError(
            f"{where}: has no tokenizer (no vocabulary such as tokenizer.json); "
            "name the folder that has it with model.tokenizer_path"
        )
    return tokenizer


def _vocabulary_size(path: str) -> int | None:
    """That of a model's config.json; None: it has none."""
    config = _model_file(path, "config.json")
    facts = {} if config is None else json.loads(read_text(config))
    for part in (facts, facts.get("text_config")) if isinstance(facts, dict) else ():
        if isinstance(part, dict) and isinstance(size := part.get("vocab_size"), int) and size > 0:
            return size
    return None


def _check_belongs(tokenizer: "PreTrainedTokenizerBase", model: ModelConfig) -> None:
    """Raise ConfigError when the model has no such tokens, or other ones under the same ids.

    The model's own tokenizer, where its folder has one, may have fewer tokens, but none with another id.
    """
    vocabulary, added = tokenizer.get_vocab(), tokenizer.added_tokens_decoder
    key, name = "model.tokenizer_path", model.tokenizer_path
    size = _vocabulary_size(model.path)
    largest = max(id_ for id_ in vocabulary.values() if id_ not in added or id_ == tokenizer.eos_token_id)
    if size is not None and largest >= size:
        raise ConfigError(
            key, f"{name} has token ids up to {largest}, and the model {model.path} a vocabulary of {size}"
        )
    try:
        own = _load(model.path, f"model.path: {model.path}", model.trust_remote_code).get_vocab()
    except ModelError:  # it has none of its own
        return
    for token, id_ in sorted(own.items(), key=lambda item: item[1]):
        if vocabulary.get(token, id_) != id_:
            raise ConfigError(
                key,
                f"{name} is no tokenizer of the model {model.path}: the token {token!r} has the id {vocabulary[token]} "
                f"there and {id_} in the model's own",
            )


def _local_folder(source: str, where: str) -> Path | None:
    """The folder that ``source`` names, None for a hub name (``name`` or ``owner/name``).

    What is written as a path, or begins with a folder that is here, is not looked for on the hub.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    first, *rest = path.parts or (".",)
    if source.startswith(("/", ".", "~")) or len(rest) > 1 or (rest and Path(first).is_dir()):
        raise ModelError(f"{where}: no such folder (looked for {path.absolute()})")
    look_for_hub()
    return None


def _read_template(file: str) -> str:
    try:
        return read_text(Path(file).expanduser())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("model.chat_template", f"cannot read the Jinja file {file} ({error})") from error


def _generation_eos_token_ids(source: str) -> list[int]:
    """``eos_token_id`` of the model's generation_config.json, where it has one: an id or a list of ids."""
    file = _model_file(source, "generation_config.json")
    if file is None:
        return []
    try:
        ids = json.loads(read_text(file)).get("eos_token_id")
    except (ValueError, AttributeError, RecursionError, OSError) as error:
        raise ModelError(f"model.path: {source}: generation_config.json is not a JSON object ({error})") from error
    if ids is None:
        return []
    found = ids if isinstance(ids, list) else [ids]
    if not all(type(each) is int and 0 <= each < LARGEST_ID for each in found):
        shown = f"{ids!r:.100}"
        raise ModelError(f"model.path: {source}: eos_token_id in generation_config.json must be token ids, not {shown}")
    return found


def _model_file(source: str, name: str) -> Path | None:
    folder = _local_folder(source, f"model.path: {source}")
    if folder is not None:
        file = folder / name
        return file if file.exists() else None
    from transformers.utils.hub import cached_file

    try:
        cached = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"model.path: {source}: is no folder here and cannot be had from the hub ({_first_line(error)})"
        ) from error
    return Path(cached) if cached else None


def why(error: BaseException, key: str = "model.trust_remote_code") -> str:
    """Why a model folder cannot be read, in a line; code of the folder, which did not run, is named with its key."""
    if "trust_remote_code" in str(error):
        return f"it has Python code of its own, which was not run: {key}=true runs it"
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    first, *others = (str(error).strip() or type(error).__name__).splitlines()
    return f"{first} {others[0].strip()}" if first.endswith(":") and others else first
