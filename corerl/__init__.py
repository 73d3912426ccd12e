"""CoreRL: reinforcement-learning post-training for language models, built from plugins.

The names a plugin author needs are here; everything else is imported from the room it lives in.
"""

from corerl.contracts.options import option
from corerl.errors import CoreRLError
from corerl.hookspecs import Register, hookimpl

__version__ = "0.1.0"

API_VERSION = "1.0"
"""of hooks, contracts and the other modules in docs/compatibility.md: the first number changes if plugins break"""

__all__ = ["API_VERSION", "CoreRLError", "Register", "__version__", "hookimpl", "option"]
