"""Files of responses and their statistics: :mod:`files` reads and writes, :mod:`estimators` has the formulas,
:mod:`summary` applies them by data source, :mod:`samples` and :mod:`validation` serve a training.
"""
