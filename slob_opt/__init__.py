"""The core of SLoB: problem, cost model, planning, scheduling, metrics and the method itself.

Three questions about serving an LLM on a few unequal GPUs are answered here, each with a proof of how good the answer
is: *placement* (which GPUs form which pipelines, how many layers each holds), *dispatch* (which pipeline gets the next
request) and *batching* (which requests form the next micro-batch).

Layers, top to bottom; each imports from those below it only:

===========================================  ======================================================================
``slob``, ``simulation``                     the method; the event-driven simulator
``planning``, ``scheduling``, ``metrics``    objectives, bounds and certificates; the scheduler; figures from a trace
``cost``                                     the only formulas for time and bytes
``problem``                                  what is given and what is chosen; file formats and the catalogue
``units``, ``errors``                        conversions; exceptions and warnings
===========================================  ======================================================================

Importing this package imports none of them, and needs nothing that is not installed with Python.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
