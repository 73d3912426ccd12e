"""Responses on disk and in numbers: :mod:`files` reads and writes them, :mod:`estimators` has the formulas,
:mod:`summary` applies them by data source, :mod:`samples` and :mod:`validation` serve a training.
"""
