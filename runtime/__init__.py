"""The room for the torch runtime, which will run a plan on real devices with the scheduler that the simulator uses.

Today it holds the export of a plan to another engine; the engine itself comes later. The import rules (it knows
``slob_opt``, never ``solvers`` or ``experiments``) hold from the first module on.
"""
