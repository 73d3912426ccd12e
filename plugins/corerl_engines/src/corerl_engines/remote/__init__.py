"""The engine's side, in its own process and Python environment, where this package is called ``corerl_engine``.

It needs torch and the standard library; CoreRL need not be installed there, so its modules import each other
relatively. A plugin's package beside it holds the code for one engine.
"""
