"""The page's table of speed is that of the kept measurements, and the C loops and comparisons do what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = [sys.executable, str(ROOT / "benchmarks" / "bench_table.py")]


def kept(**changes: Any) -> dict[str, Any]:
    """Results with one row that was met, one that was not, and one that failed."""
    ours = {"wall": 1.0, "cpu": 2.0, "figure_wall": 1.0, "figure_cpu": 2.0, "units": 1.0, "answer": {"accuracy": 0.9}}
    theirs = {**ours, "figure_wall": 1234.5, "figure_cpu": 1234.5}
    both = {"mssvm": ours, "peer": theirs, "other": {"failed": "no wheel"}}
    wanted = [{"text": "at least 2 times as fast as peer", "value": 1234.5, "met": True}]
    rows = {
        "a": {"what": "fit", "unit": "s", "contestants": both, "wanted": wanted},
        "b": {
            "what": "alone",
            "unit": "s",
            "contestants": {"mssvm": ours},
            "wanted": [{"text": "at most 0.5 s", "value": 1.0, "met": False}],
        },
        "c": {"what": "lost", "unit": "s", "contestants": {}, "failed": "not done in 600 s"},
    }
    machine = {"cores": 2, "processor": "some", "python": "3.11", "numpy": "2.0"}
    return {"quick": False, "machine": machine, "peers_not_run": {"libDAI": "C++"}, "rows": rows, **changes}


def made(tmp_path: Path, results: dict[str, Any] | None) -> subprocess.CompletedProcess[str]:
    readme = tmp_path / "README.md"
    readme.write_text("head\n<!-- bench: begin -->\nold\n<!-- bench: end -->\ntail\n")
    if results is not None:
        (tmp_path / "bench.json").write_text(json.dumps(results))
    files = ["--results", str(tmp_path / "bench.json"), "--page", str(readme)]
    done = subprocess.run([*TABLE, *files], check=False, capture_output=True, text=True)
    if done.returncode == 0:
        assert subprocess.run([*TABLE, *files, "--check"], check=False).returncode == 0
    return done


def test_the_page_agrees_with_the_kept_measurements() -> None:
    assert subprocess.run([*TABLE, "--check"], check=False).returncode == 0


def test_the_table_shows_what_was_met_what_was_not_and_what_failed(tmp_path: Path) -> None:
    assert made(tmp_path, kept()).returncode == 0
    text = (tmp_path / "README.md").read_text()
    assert "| fit | 1 (2) s | peer 1,234; other not run | at least 2 times as fast as peer: met (1,234) |" in text
    assert "| alone | 1 (2) s, 90.0% right |  | at most 0.5 s: **not met** (1) |" in text
    assert "| lost | failed: not done in 600 s | |  |" in text
    assert "libDAI (C++)" in text and text.startswith("head\n") and text.endswith("tail\n")


def test_without_measurements_the_table_says_so(tmp_path: Path) -> None:
    assert made(tmp_path, None).returncode == 0
    assert "No measurements are kept" in (tmp_path / "README.md").read_text()


def test_a_quick_run_is_not_published(tmp_path: Path) -> None:
    done = made(tmp_path, kept(quick=True))
    assert done.returncode != 0 and "quick run" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("row", ["pass-links-hcrf", "pass-leaves-max", "sweeps-32"])
def test_a_row_runs_beside_its_c_loop_and_agrees_with_it(row: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench.py"), "--alone", row, "--quick", "--repeats", "1"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert "failed" not in found
    ours, c = found["contestants"]["mssvm"], found["contestants"]["C"]
    assert ours["wall"] > 0 and ours["cpu"] > 0
    assert "failed" in c or c["figure_wall"] > 0


def test_an_unknown_row_is_refused() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench.py"), "--rows", "nothing"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2 and "no row 'nothing'" in done.stderr
