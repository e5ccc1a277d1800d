"""Writes a trace file as things happen; what was cut off leaves no file behind."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType

from slob_opt.errors import InputError
from slob_opt.metrics.iterations import Iteration
from slob_opt.metrics.outcomes import Outcome
from slob_opt.metrics.trace_header import TraceHeader
from slob_opt.metrics.trace_lines import TraceEnd, TraceLine, TraceRequest, line_text
from slob_opt.problem.workload import Workload


class TraceWriter:
    r"""A trace that is being written, as a context manager.

    Lines go to a new file beside `path`, which takes its name when :meth:`finish` was called and the block ends. A
    block that is left earlier, or by an exception, leaves whatever stood there before. Not for several threads.

    Parameters
    ----------
    path
        File to write.
    header
        Its first line.

    Examples
    --------
    >>> import tempfile
    >>> from slob_opt.metrics.request_columns import Status
    >>> from slob_opt.metrics.trace_header import TracePipeline, TraceStage
    >>> import numpy as np
    >>> one = TracePipeline(1, (TraceStage(("n/0",), 0, 32),))
    >>> header = TraceHeader("simulator", "two", "one", "llama-3.1-8b", "orca", None, "ragged", 0, (one,))
    >>> workload = Workload.of("two", [0.0], [100], [1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "trace.jsonl"
    ...     with TraceWriter(path, header) as trace:
    ...         trace.iteration(Iteration(0, 0, (0,), (100,), (), (0,), (90,), 90, 100, 0))
    ...         trace.outcome(workload, Outcome(0, Status.FINISHED, 0, 0, np.array([90])))
    ...         trace.finish(1000)
    ...     path.read_text().count("\n")
    4
    """

    def __init__(self, path: Path, header: TraceHeader) -> None:
        self.path = path.resolve()
        self._header = header
        self._temporary: Path | None = None
        self._file: TextIOWrapper | None = None
        self._counts = [0, 0]
        self._is_finished = False

    def __enter__(self) -> TraceWriter:
        """Open the file beside; raises InputError where that can't be."""
        if self.path.exists() and not self.path.is_file():
            raise InputError("this is no regular file, expected the name of a file to write", file=str(self.path))
        try:
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.", suffix=".part")
        except OSError as error:
            raise self._unwritten(error) from error
        self._temporary = Path(name)
        self._file = os.fdopen(handle, "w", encoding="utf-8", newline="\n")
        self._put(self._header)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the file its name, or drop it."""
        assert self._file is not None
        assert self._temporary is not None
        file, temporary = self._file, self._temporary
        self._file = None
        try:
            if kind is None and self._is_finished:
                file.flush()
                os.fsync(file.fileno())
                file.close()
                temporary.chmod(0o644)
                temporary.replace(self.path)
        except OSError as broken:
            raise self._unwritten(broken) from broken
        finally:
            with suppress(OSError):
                file.close()  # fails again on a full disk
            temporary.unlink(missing_ok=True)

    def iteration(self, iteration: Iteration) -> None:
        """Append an iteration; fits where an observer of iterations is asked for."""
        self._put(iteration)
        self._counts[0] += 1

    def request(self, request: TraceRequest) -> None:
        """Append a request that is over."""
        self._put(request)
        self._counts[1] += 1

    def outcome(self, workload: Workload, outcome: Outcome) -> None:
        """Append a request of a workload, whose true lengths are known."""
        self.request(TraceRequest.of(workload, outcome))

    def finish(self, end_ns: int) -> None:
        """Append the last line; nothing may follow.

        Parameters
        ----------
        end_ns
            End of the observation, nanoseconds.
        """
        self._put(TraceEnd(end_ns, *self._counts))
        self._is_finished = True

    def _put(self, line: TraceLine) -> None:
        if self._file is None or self._is_finished:
            raise InputError("the trace is closed, nothing can be added", file=str(self.path))
        try:
            self._file.write(line_text(line))
        except OSError as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> InputError:
        reason = error.strerror or str(error)
        return InputError(f"the file can't be written: {reason}; nothing was changed", file=str(self.path))
