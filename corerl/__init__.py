"""CoreRL: reinforcement-learning post-training for language models, built from plugins.

The names a plugin author needs are here; everything else is imported from the room it lives in.
"""

from importlib.metadata import PackageNotFoundError, version

from corerl.contracts.options import option
from corerl.errors import CoreRLError
from corerl.hookspecs import Register, hookimpl

try:
    __version__ = version("corerl")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"

API_VERSION = "1.0"
"""of hooks, contracts and the other modules in docs/compatibility.md: the first number changes if plugins break"""

__all__ = ["API_VERSION", "CoreRLError", "Register", "__version__", "hookimpl", "option"]
