"""The room for the torch runtime, which will run a plan on real devices with the scheduler that the simulator uses.

Nothing lives here yet. The package exists so that its name is ours from the first release on, and so that the import
rules (it knows ``slob_opt``, never ``solvers`` or ``experiments``) hold before its first module is written.
"""
