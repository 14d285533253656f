"""Runs alone, without the package: reads problems as JSON lines, minimises each with toulbar2, writes JSON lines.

Costs are whole numbers below 2^53, exact both in the solver's 64-bit integers and in doubles on the way to it.

A solver that was stopped by its time limit leaves its library unusable, so the process then ends, and its parent starts
another one for the rest.
"""

import json
import sys


def main() -> None:
    import pytoulbar2

    for line in sys.stdin:
        problem = json.loads(line)
        network = pytoulbar2.CFN(problem["most"], resolution=0, vac=1, seed=1, verbose=-1)
        # Before the search: a good assignment and, where tables are of pairs, a bound by reweighted messages. On images
        # of learned scores proofs are several times faster.
        pairs = all(len(scope) <= 2 for scope, _ in problem["functions"])
        network.Option.useRASPS = 1
        network.Option.trwsAccuracy = 1e-5 if pairs else -1.0
        for v, card in enumerate(problem["cards"]):
            network.AddVariable(f"x{v}", range(card))
        for scope, costs in problem["functions"]:
            network.AddFunction(scope, [float(cost) for cost in costs])
        found = network.Solve(timeLimit=problem["seconds"])
        states = list(found[0]) if found else None
        dual = network.GetDDualBound()
        sys.stdout.write(json.dumps({"states": states, "dual": dual}) + "\n")
        sys.stdout.flush()
        if not found or dual < found[1]:
            return


if __name__ == "__main__":
    main()
