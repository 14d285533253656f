"""The quadratic programs of the cutting-plane solver: min_a 1/2 a'Ha - q'a with a >= 0 and sum 1 in every group."""

from __future__ import annotations

import numpy as np

from mssvm.arrays import Floats, Ints


def solve_simplices(H: Floats, q: Floats, group: Ints, start: Floats) -> tuple[Floats, bool]:
    """Weights of the planes, feasible to the last bit, and whether the interior-point solver succeeded.

    Any feasible weights give a valid lower bound. Where the solver fails, or ends above the start, pairwise steps
    from the start take its place: slower, and safe.
    """
    if len(q) == len(np.unique(group)):
        return np.ones(len(q)), True
    solved = _interior_point(H, q, group)
    if solved is not None and _value(H, q, solved) <= _value(H, q, start) + 1e-12 * max(1.0, abs(_value(H, q, start))):
        return solved, True
    return pairwise(H, q, group, start), False


def _value(H: Floats, q: Floats, a: Floats) -> float:
    return float(0.5 * a @ (H @ a) - q @ a)


def _interior_point(H: Floats, q: Floats, group: Ints) -> Floats | None:
    import piqp

    k, groups = len(q), np.unique(group)
    scale = max(float(np.abs(np.diag(H)).max()), 1e-300)
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = 1e-10
    sums = np.asfortranarray((group[None, :] == groups[:, None]).astype(np.float64))
    P = np.asfortranarray((H + H.T) / (2 * scale))
    solver.setup(P, -q / scale, sums, np.ones(len(groups)), x_l=np.zeros(k), x_u=np.ones(k))
    status = solver.solve()
    a = np.maximum(np.asarray(solver.result.x, dtype=np.float64), 0.0)
    if status != piqp.PIQP_SOLVED or not np.all(np.isfinite(a)):
        return None
    index = np.searchsorted(groups, group)
    totals = np.bincount(index, weights=a, minlength=len(groups))
    return None if np.any(totals <= 0) else np.asarray(a / totals[index])


def pairwise(H: Floats, q: Floats, group: Ints, start: Floats, max_steps: int = 5000) -> Floats:
    """Move weight from the worst plane in use to the best one of the same group, with exact line search."""
    a = start.copy()
    gradient = H @ a - q
    scale = max(float(np.abs(q).max()), 1e-300)
    for step in range(max_steps):
        g = np.unique(group)[step % len(np.unique(group))]
        members = np.flatnonzero(group == g)
        active = members[a[members] > 0]
        best, worst = members[gradient[members].argmin()], active[gradient[active].argmax()]
        drop = gradient[worst] - gradient[best]
        if drop <= 1e-14 * scale:
            if _violation(gradient, a, group) <= 1e-12 * scale:
                break
            continue
        curvature = H[best, best] + H[worst, worst] - 2 * H[best, worst]
        move = a[worst] if curvature <= 0 else min(a[worst], drop / curvature)
        a[best] += move
        a[worst] -= move
        gradient += move * (H[:, best] - H[:, worst])
    return a


def _violation(gradient: Floats, a: Floats, group: Ints) -> float:
    """The largest difference of gradients between a plane in use and the best one of its group."""
    worst = 0.0
    for g in np.unique(group):
        members = group == g
        worst = max(worst, float(gradient[members & (a > 0)].max() - gradient[members].min()))
    return worst
