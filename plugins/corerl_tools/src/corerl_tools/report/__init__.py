"""``corerl report``: runs as one page that needs no network, and as lines for a terminal."""
