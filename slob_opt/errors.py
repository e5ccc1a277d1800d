"""Exceptions and warnings of the project, all under :class:`SlobError` or :class:`SlobWarning`."""

from __future__ import annotations


class SlobError(Exception):
    """Base class of every error this project raises on purpose."""


class InputError(SlobError, ValueError):
    """Wrong input, told in one sentence.

    Parameters
    ----------
    message
        What was found and what was expected.
    file
        The file the input came from; ``None`` when it came from an argument.
    key
        Dotted path of the key inside the file, as ``nodes[2].gpu``; ``None`` when the whole input is meant.
    """

    def __init__(self, message: str, *, file: str | None = None, key: str | None = None) -> None:
        self.message = message
        self.file = file
        self.key = key
        where = ": ".join(part for part in (file, key) if part)
        super().__init__(f"{where}: {message}" if where else message)

    def located(self, *, file: str | None = None, key: str | None = None) -> InputError:
        """Return the same error with file and key filled in where they were missing."""
        return InputError(self.message, file=self.file or file, key=self.key or key)


class PolicyError(SlobError, RuntimeError):
    """A policy or planner asked for something that is not allowed."""


class SolverUnavailable(SlobError, RuntimeError):
    """A solver that was asked for can't be used here; the message says what to install."""


class CertificateError(SlobError, RuntimeError):
    """A claim (placement, objective or bound) does not survive its re-check."""


class ShadowedPackageError(SlobError, RuntimeError):
    """One of our top-level packages is missing or a foreign one of the same name comes first on the path."""


class TrackingError(SlobError, RuntimeError):
    """The tracking store can't be reached or written; the message says what to do."""


class EngineError(SlobError, RuntimeError):
    """The runtime can't go on: a worker died, hangs or can't be reached; the message names it and says why."""


class SlobWarning(UserWarning):
    """Base class of the project's warnings."""


class SkippedDegreeWarning(SlobWarning):
    """A tensor-parallel degree that a cluster offers is left out, since the model's heads don't divide by it."""


class PlausibilityWarning(SlobWarning):
    """An input is legal but looks like a slip of units; the message names the key and the usual value."""
