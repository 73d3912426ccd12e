"""Responses on disk and what they are worth: :mod:`~corerl.evaluation.files` reads and writes them,
:mod:`~corerl.evaluation.estimators` has the formulas, :mod:`~corerl.evaluation.summary` applies them by data source.
"""
