"""Placements that people use today, as planners to compare with.

A baseline follows its own rule and reports what comes out. It does not repair a plan that breaks memory, ignores the
incumbent, and gives no bound: status FEASIBLE with a plan, or UNKNOWN with a message that begins with ``failed:``. That
a baseline fails never means that no plan exists. The class attribute ``is_baseline`` says that these rules hold.
"""
