"""Checkpoints in a folder of fsspec (``trainer.remote_dir``): copies to it, and runs that resume from it.

``<remote_dir>/<experiment>/<run>/`` has ``global_step_N/`` with all files of the checkpoint, its ``manifest.json``
last, ``config.yaml``, ``metrics.jsonl`` and ``run.json``.
"""
