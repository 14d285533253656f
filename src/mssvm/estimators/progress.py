"""One live line while training runs."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from mssvm.core.arrays import Floats
from mssvm.optim import Row


class Progress:
    """A solver's callback that keeps a line on the terminal up to date; silent unless asked for."""

    def __init__(self, name: str, show: bool, n_starts: int = 1) -> None:
        self._name, self._n_starts = name, n_starts
        self._live = Live(Text(name), console=Console(stderr=True), refresh_per_second=8) if show else None
        self.start = 0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, row: Row, w: Floats) -> bool | None:
        if self._live is not None:
            self._live.update(Text(self.line(row)))
        return None

    def line(self, row: Row) -> str:
        """What is shown of one row of the trace."""
        parts = [self._name]
        if self._n_starts > 1:
            parts.append(f"start {self.start + 1} of {self._n_starts}")
        parts.append(f"iteration {row.iteration}, objective {row.objective:.6g}")
        for name, value in (("gap", row.gap), ("gradient", row.gradient_norm)):
            if np.isfinite(value):
                parts.append(f"{name} {value:.2g}")
        if np.isfinite(row.converged) and row.converged < 1:
            parts.append(f"{row.converged:.0%} of inference converged")
        parts.append(f"temperatures {row.eps_y:g} and {row.eps_h:g}, {row.seconds:.1f} s")
        return ", ".join(parts)
