"""``corerl prepare``: from a published data set, or from nothing, to files that training reads."""
