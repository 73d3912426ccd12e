"""The hub that models are downloaded from, asked once whether it answers."""

import functools
import os
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

from corerl.terminal.notices import say

SECONDS = 5.0
"""that it has to take a connection"""


@functools.cache
def look_for_hub() -> None:
    """Where it takes no connection, go on as with ``HF_HUB_OFFLINE=1``, here and in processes that are started later.

    Its library would try each file again for half a minute. Behind a proxy nothing is asked.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or getproxies():
        return
    hub = urlsplit(constants.ENDPOINT)
    port = hub.port or (80 if hub.scheme == "http" else 443)
    try:
        socket.create_connection((hub.hostname or "", port), SECONDS).close()
    except OSError as error:
        say(f"{constants.ENDPOINT} does not answer ({error}): only what was downloaded before is there")
        constants.HF_HUB_OFFLINE = True
        os.environ["HF_HUB_OFFLINE"] = "1"
