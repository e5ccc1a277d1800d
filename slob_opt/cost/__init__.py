"""The only formulas for time and bytes, and the one table of both that planners read.

:mod:`~slob_opt.cost.build` turns cluster, model and traffic into a :class:`~slob_opt.cost.table.CostTable`;
:mod:`~slob_opt.cost.direct` makes one from plain numbers. What an iteration computes is a
:class:`~slob_opt.cost.batch.BatchShape`; :mod:`~slob_opt.cost.roofline` gives its time, :mod:`~slob_opt.cost.memory`
the bytes.
"""
