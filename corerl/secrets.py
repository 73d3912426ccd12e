"""Secrets: a config names an environment variable, ``${env:NAME}``, and never the secret itself.

Run folders, checkpoints and reports show the reference. :func:`reveal` reads the value at its use.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from corerl.errors import ConfigError

REFERENCE = re.compile(r"\$\{env:([A-Za-z_]\w*)\}")

_NAMES = re.compile(
    r"(?i)(^|[^a-z])(authorization|cookie|(api|access|account|secret|private|encryption|signing|auth)[-_]?key|secret"
    r"|credentials?|(hf|hub)[-_]?token|token)$"
    r"|(api|access|auth|bearer|client|private|refresh|secret|session)[-_]?(key|secret|token)$"
    r"|passw(or)?d$|passphrase$|[-_](pwd|pat)$"
)
_NONE = object()
_NO_SECRETS = re.compile(r"(?i)(^|_)(bos|eos|pad|unk|sep|cls|mask|image|video|audio|boi|eoi)_token$")

_VALUES = re.compile(
    r"(?i:bearer|basic)\s+[\w.~+/=-]{8,}"
    r"|\b(sk|pk|rk)-[\w-]{16,}"
    r"|\b(hf|ghp|gho|ghs|github_pat|glpat|xox[abp])[_-]\w{16,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\bey[\w-]{10,}\.ey[\w-]{10,}\.[\w-]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\w://[^/\s:@]+:[^/\s@]+@"
)


def reveal(text: str) -> str:
    """``text`` with every ``${env:NAME}`` replaced by the value of that environment variable.

    Raises:
        ConfigError: a variable is not set.
    """

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if not found:
            raise ConfigError("", f"the environment variable {match[1]} is not set; the config names it as {match[0]}")
        return found

    return REFERENCE.sub(value, text)


def public(name: str, default: Any = _NONE) -> Any:
    """The value of ``${oc.env:NAME}``, which is written into files and shown.

    Raises:
        KeyError: the variable is not set, and there is no default.
        ValueError: the variable holds a secret.
    """
    found = os.environ.get(str(name))
    if is_secret(str(name), found or ""):
        raise ValueError(f"the environment variable {name} looks like a secret, which ${{oc.env:{name}}} would show")
    if found is not None:
        return found
    if default is _NONE:
        raise KeyError(f"Environment variable '{name}' not found")
    return default if default is None else str(default)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable holds a secret, by its name or its value, such as the password of a proxy."""
    return is_secret_name(name) or bool(_VALUES.search(value))


def is_secret_name(name: str) -> bool:
    """Whether a key or an environment variable of this name holds a secret.

    >>> is_secret_name("HF_TOKEN"), is_secret_name("Authorization"), is_secret_name("eos_token")
    (True, True, False)
    """
    return bool(_NAMES.search(name)) and not _NO_SECRETS.search(name)


def plain_secrets(values: Mapping[str, Any], path: str = "") -> Iterator[ConfigError]:
    """An error for every text in nested plain values that looks like a secret; no error shows the text."""
    for name, value in values.items():
        key = f"{path}.{name}" if path else str(name)
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, Mapping):
                yield from plain_secrets(item, key)
            elif isinstance(item, str) and _is_plain_secret(str(name), item):
                yield ConfigError(
                    key,
                    "looks like a secret, which would be written into the run's files: put it into an environment "
                    "variable and write ${env:NAME} here",
                )


def _is_plain_secret(name: str, text: str) -> bool:
    rest = REFERENCE.sub("", text)
    if _VALUES.search(rest):
        return True
    return is_secret_name(name) and bool(rest.strip()) and rest == text
