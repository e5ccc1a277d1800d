"""The text of an answer while its tokens come: whole characters only, and nothing that a stop text may swallow."""

from __future__ import annotations

from codecs import getincrementaldecoder

from runtime.token_pieces import TokenPieces
from slob_opt.errors import InputError

_Utf8 = getincrementaldecoder("utf-8")


class AnswerText:
    """Turns the tokens of one answer into text.

    What :meth:`add` and :meth:`flush` return, joined, is the text of all tokens up to the stop text. Not for several
    threads.

    Parameters
    ----------
    pieces
        Of the vocabulary.
    stops
        Texts that end the answer.

    Attributes
    ----------
    stop
        The stop text that was met; ``None`` before. What is added afterwards is ignored.

    Raises
    ------
    InputError
        When a stop text is empty.
    """

    def __init__(self, pieces: TokenPieces, stops: tuple[str, ...] = ()) -> None:
        self.stop: str | None = None
        self._pieces, self._utf8 = pieces, _Utf8("replace")
        self._watch = StopWatch(stops) if stops else None
        self._held = ""
        self._is_first = True

    def add(self, token: int) -> str:
        """Return the text that is certain now that this token has come.

        Bytes that can't become a character are told as U+FFFD, as soon as that is certain.
        """
        if self.stop is not None:
            return ""
        piece = self._pieces.of(token, is_first=self._is_first)
        self._is_first = self._is_first and not self._pieces.is_text(token)
        return self._certain(self._utf8.decode(piece)) if piece else ""

    def flush(self) -> str:
        """Return what was held back, for the answer is over; a character that isn't whole becomes U+FFFD."""
        if self.stop is not None:
            return ""
        text = self._certain(self._utf8.decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _certain(self, new: str) -> str:
        """Take new text; return what no stop text can reach any more."""
        if self._watch is None:
            return new
        text = self._held + new
        found = self._watch.find(new)
        if found is None:
            end = len(text) - self._watch.num_held
        else:
            self.stop, after = found
            end = len(text) - after - len(self.stop)
        self._held = "" if found else text[end:]
        return text[:end]


class StopWatch:
    """Looks for the first of some texts in a text that comes in pieces.

    It finds the one that ends first, and of those that end together the longest: what a reader who goes character by
    character would find, however the text was cut into pieces. Each character costs the same, whatever came before.

    Parameters
    ----------
    stops
        The texts.

    References
    ----------
    Knuth, Morris & Pratt (1977), Fast pattern matching in strings; one automaton for each text.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        if not all(stops):
            raise InputError("found an empty stop text, expected at least one character")
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._beginnings = frozenset(stop[0] for stop in stops)

    @property
    def num_held(self) -> int:
        """Characters at the end of the text that may be the beginning of a stop text."""
        return max(self._matched)

    def find(self, new: str) -> tuple[str, int] | None:
        """Read on; return the stop text that was met and how many of the new characters follow it, else ``None``."""
        matched = self._matched
        if not any(matched) and self._beginnings.isdisjoint(new):
            return None
        for place, letter in enumerate(new, start=1):
            for index, (stop, borders) in enumerate(zip(self._stops, self._borders, strict=True)):
                length = matched[index]
                while length and stop[length] != letter:
                    length = borders[length - 1]
                matched[index] = length + (stop[length] == letter)
            for index, stop in enumerate(self._stops):
                if matched[index] == len(stop):
                    return stop, len(new) - place
        return None


def _borders(text: str) -> list[int]:
    """For each beginning of a text, the length of its longest proper beginning that is also its end."""
    found = [0]
    for letter in text[1:]:
        length = found[-1]
        while length and text[length] != letter:
            length = found[length - 1]
        found.append(length + (text[length] == letter))
    return found
