"""The half that runs in an engine's own process and Python environment, where it is called ``corerl_engine``.

It needs torch and the standard library; nothing of CoreRL has to be installed there, so its modules import each
other relatively. A plugin's package beside it holds what is particular to one engine.
"""
