"""``make attack``: bad inputs, damaged files, faults, a soak, hard numbers and gaps, in turn; counts are kept.

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
KEPT = HERE.parent / "benchmarks" / "results" / "attack.json"
PARTS = {
    "faults": ("attack_faults.py",),
    "soak": ("attack_soak.py", "--minutes", "10"),
    "files": ("attack_files.py", "--cases", "10000"),
    "matrix": ("attack_matrix.py",),
    "numbers": ("attack_numbers.py", "--forests", "100000", "--graphs", "20000"),
    "gaps": ("attack_gaps.py", "--fits", "200"),
}


def options(text: str | None) -> argparse.ArgumentParser:
    """The options of a part, beside its own: a file for what it found."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    return parser


def report(found: dict[str, Any], target: Path | None) -> int:
    """Tell what a part found, in a file too where one is named; the exit code."""
    sys.stderr.write("".join(f"{line}\n" for line in found["failed"]))
    sys.stdout.write(json.dumps({k: v for k, v in found.items() if k != "failed"}, indent=1) + "\n")
    if target is not None:
        target.write_text(json.dumps(found, indent=1) + "\n")
    return int(bool(found["failed"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--output", type=Path, default=KEPT)
    args = parser.parse_args()
    kept = json.loads(args.output.read_text()) if args.output.exists() else {}
    codes = []
    for name in args.parts:
        script, *options = PARTS[name]
        sys.stdout.write(f"{name}\n")
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder) / "found.json"
            run = subprocess.run([sys.executable, str(HERE / script), *options, "--json", str(told)], check=False)
            codes.append(run.returncode)
            found = json.loads(told.read_text()) if told.exists() else {"failed": ["it did not come to its end"]}
        kept[name] = {"options": options, **found}
        args.output.write_text(json.dumps(kept, indent=1) + "\n")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
