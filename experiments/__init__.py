"""Where everything is wired together: command line, registry of names, configurations, runs, tracking, studies, plots.

This is the only package that knows all the others, and only ``experiments.cli`` reads arguments, environment or working
directory. Needs the extra ``experiments``; importing this package does not.
"""
