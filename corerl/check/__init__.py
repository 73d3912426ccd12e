"""``corerl check`` and ``corerl doctor``: what is wrong with a run before it starts, and where it is to run.

:mod:`findings` is what is said, :mod:`problems` the table that remedies and docs/troubleshooting.md are made from,
:mod:`configuration`, :mod:`installed`, :mod:`data` and :mod:`memory` look, :mod:`run` calls them in turn.
"""
