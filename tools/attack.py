"""``make attack``: bad inputs, damaged files, faults, a soak, hard numbers, gaps and bounds; counts are stored.

    python tools/attack.py [--parts NAME ...] [--output FILE]

Each part is a script of its own beside this one and takes options; here it runs with those of ``PARTS``, which are set
so that all of it takes about an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "benchmarks" / "results" / "attack.json"
PARTS = {
    "faults": ("attack_faults.py",),
    "soak": ("attack_soak.py", "--minutes", "10"),
    "files": ("attack_files.py", "--cases", "10000"),
    "matrix": ("attack_matrix.py",),
    "numbers": ("attack_numbers.py", "--forests", "100000", "--graphs", "20000"),
    "gaps": ("attack_gaps.py", "--fits", "200"),
    "bounds": ("attack_bounds.py", "--graphs", "20000"),
}


def options(text: str | None) -> argparse.ArgumentParser:
    """A parser with the option that all parts share: a file for the results."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    return parser


def report(result: dict[str, Any], target: Path | None) -> int:
    """Print the result of a part, and write it to ``target``; returns the exit code."""
    for line in result["failed"]:
        print(line, file=sys.stderr)
    print(json.dumps({name: value for name, value in result.items() if name != "failed"}, indent=1))
    if target is not None:
        target.write_text(json.dumps(result, indent=1) + "\n")
    return int(bool(result["failed"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    results = json.loads(args.output.read_text()) if args.output.exists() else {}
    codes = []
    for name in args.parts:
        script, *options = PARTS[name]
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "result.json"
            run = subprocess.run([sys.executable, str(HERE / script), *options, "--json", str(target)], check=False)
            codes.append(run.returncode)
            result = {"failed": ["it did not come to its end"]}
            if target.exists():
                result = json.loads(target.read_text())
        results[name] = {"options": options, **result}
        args.output.write_text(json.dumps(results, indent=1) + "\n")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
