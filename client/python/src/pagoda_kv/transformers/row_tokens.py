"""The tokens of a batch's rows, as far as they are known, and the keys of their pages."""

from collections.abc import Sequence

import torch


class RowTokens:
    """One row. Left padding is no part of it."""

    def __init__(self, pad: int = 0) -> None:
        self.pad = pad  # columns before it
        self.tokens: list[int] = []
        self.keys: list[bytes] = []  # of its full pages, as far as they were needed
        self.finished = 0  # full pages that were pushed, or not to be
        self.promised: Sequence[int] = ()  # the prompt that its first pages were loaded for

    def note(self, position: int, tokens: Sequence[int]) -> None:
        """Tokens from `position` on. ValueError: not those that were promised."""
        if position != len(self.tokens):
            return  # something before them is unknown: their keys cannot be told
        for at, (given, expected) in enumerate(zip(tokens, self.promised[position:])):
            if given != expected:
                raise ValueError(
                    f"token {position + at} of the prompt is {given}, the cache was loaded for a "
                    f"prompt with {expected} there; make one for this prompt"
                )
        self.tokens.extend(tokens)

    def truncate(self, length: int, page_tokens: int) -> None:
        pages = length // page_tokens
        del self.tokens[length:]
        del self.keys[pages:]
        self.finished = min(self.finished, pages)
        self.promised = self.promised[:length]

    def fork(self) -> "RowTokens":
        other = RowTokens(self.pad)
        other.tokens, other.keys = list(self.tokens), list(self.keys)
        other.finished, other.promised = self.finished, self.promised
        return other


def left_padding(attention_mask: torch.Tensor | None, rows: int) -> list[int]:
    """Columns before the first that counts, of each row."""
    if attention_mask is None or attention_mask.ndim != 2:
        return [0] * rows
    mask = attention_mask.bool()
    first = torch.where(mask.any(dim=1), mask.int().argmax(dim=1), mask.shape[1])
    return first.tolist()
