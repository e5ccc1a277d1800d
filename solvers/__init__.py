"""Exact references: the project's decisions as integer programs (PuLP) and constraint programs (OR-Tools CP-SAT).

A solver reads a cost table from ``slob_opt.cost`` and answers with a ``SolveResult`` of ``slob_opt.planning``; it holds
no formula for time or bytes of its own and never certifies itself. The maths, with the names that the variables carry,
is in ``solvers/FORMULATION.md``. Needs the extra ``exact``; importing this package does not.
"""
