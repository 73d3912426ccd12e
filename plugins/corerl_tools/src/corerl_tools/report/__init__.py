"""``corerl report``: runs as one offline HTML page, and as lines for a terminal."""
