"""``corerl prepare``: training files from a published data set or from a generator."""
