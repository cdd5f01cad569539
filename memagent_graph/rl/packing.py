"""Batch conversations of similar length, one per row, with little padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memagent_graph.rl.rows import Row


@dataclass(frozen=True)
class Batch:
    """Rows of similar length, one conversation each, padded on the right.

    Attributes:
        ids: token ids, `[rows, length]`; padding is 0, and needs no mask since it comes last.
        columns: positions after which some row has a completion token, `[width]`.
        targets: the token after each of these positions, `[rows, width]`.
        trained: whether that token belongs to the row's completion, `[rows, width]`.
        sampled: recorded log-probabilities of the trained tokens, row by row, `[tokens]`.
        advantages: advantages of the trained tokens, `[tokens]`.
        filled: number of tokens in `ids` that are not padding.
    """

    ids: torch.Tensor
    columns: torch.Tensor
    targets: torch.Tensor
    trained: torch.Tensor
    sampled: torch.Tensor
    advantages: torch.Tensor
    filled: int

    def to(self, device: torch.device | str) -> Batch:
        """Return a copy on another device."""
        tensors = {name: value.to(device) for name, value in vars(self).items() if name != "filled"}
        return Batch(**tensors, filled=self.filled)


_MOST_PADDING = 0.1
"""Largest share of padding in a batch."""


def pack(rows: Sequence[Row], *, token_budget: int) -> Iterator[list[Row]]:
    """Group rows so that a padded batch has at most `token_budget` tokens and little padding.

    Args:
        rows: the rows, in any order.
        token_budget: most tokens in a batch, including padding; longer rows are batches alone.

    Yields:
        The rows of each batch, the longest first, so that a lack of memory shows at once.
    """
    group: list[Row] = []
    filled = 0
    for row in sorted(rows, key=len, reverse=True):
        width = len(group[0]) if group else len(row)
        size = (len(group) + 1) * width
        if group and (size > token_budget or filled + len(row) < (1 - _MOST_PADDING) * size):
            yield group
            group, filled = [], 0
        group.append(row)
        filled += len(row)
    if group:
        yield group


def collate(rows: Sequence[Row]) -> Batch:
    """Make the tensors of a batch."""
    length = max(map(len, rows))
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    trained = torch.zeros(len(rows), length, dtype=torch.bool)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor([*row.prompt, *row.completion])
        trained[index, len(row.prompt) : len(row)] = True
    columns = trained.any(0).nonzero()[:, 0]
    return Batch(
        ids=ids,
        columns=columns - 1,
        targets=ids[:, columns],
        trained=trained[:, columns],
        sampled=torch.tensor([value for row in rows for value in row.sampled]),
        advantages=torch.tensor([row.advantage for row in rows for _ in row.completion]),
        filled=sum(map(len, rows)),
    )
