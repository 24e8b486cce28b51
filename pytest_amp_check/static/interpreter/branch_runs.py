"""Record of the branches that the analysis executed."""

from __future__ import annotations

import ast

from .conditions import Formula

#: Bits of the branches of a condition: the branch for a true and the one for a false condition.
BODY, ORELSE = 1, 2


class BranchRuns(dict[ast.If | ast.Call, int]):
    """Branches of each condition of one file that at least one path executed, as bits.

    The ``enabled`` argument of a call that makes a scaler or a region counts as a condition.
    """

    def add_run(self, node: ast.If | ast.Call, condition: Formula) -> None:
        self._add_bits(node, (BODY | ORELSE) if not isinstance(condition, bool) else BODY if condition else ORELSE)

    def add_runs(self, others: BranchRuns) -> None:
        for node, executed in others.items():
            self._add_bits(node, executed)

    def _add_bits(self, node: ast.If | ast.Call, executed: int) -> None:
        self[node] = self.get(node, 0) | executed


class RunsByEntry(dict[tuple[str, int], BranchRuns]):
    """Branches that the analysis of each entry point executed, by path and line of the entry point."""

    def __missing__(self, entry: tuple[str, int]) -> BranchRuns:
        made = self[entry] = BranchRuns()
        return made
