"""UAI and libDAI files: what is read, what is written back, and what bad input is answered with."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from mssvm.core.errors import InputError, MssvmError
from mssvm.core.potentials import Query
from mssvm.inference.enumerate import Enumerate, score
from mssvm.uai import (
    Limits,
    UaiModel,
    read_evidence,
    read_fg,
    read_model,
    read_query,
    read_uai,
    write_evidence,
    write_fg,
    write_query,
    write_uai,
)
from mssvm.uai.files import format_map, format_mar, format_mmap, format_pr, read_mar

DATA = Path(os.environ.get("MSSVM_DATA", Path(__file__).parents[3] / "shared" / "data"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="MSSVM_DATA is absent")

MODEL = """MARKOV
3
2 2 3
4
1 0
2 0 1
2 1 2   # a comment
0

2
 0.25 0.75
4
 1 2
 3 4
6
 1 0 1e-3
 2 5 .5
1 2.0
"""


def random_model(rng: np.random.Generator, n: int = 5, kind: str = "MARKOV") -> UaiModel:
    cards = tuple(int(c) for c in rng.integers(1, 4, n))
    scopes = [tuple(int(v) for v in rng.permutation(n)[: rng.integers(0, 4)]) for _ in range(6)]
    tables = [rng.random(int(np.prod([cards[v] for v in s]))) * (rng.random() < 0.8) for s in scopes]
    return UaiModel(cards, tuple(scopes), tuple(tables), kind)


def same(a: UaiModel, b: UaiModel) -> bool:
    return (
        (a.cards, a.scopes, a.kind) == (b.cards, b.scopes, b.kind)
        and len(a.tables) == len(b.tables)
        and all(np.array_equal(x, y) for x, y in zip(a.tables, b.tables, strict=True))
    )


def save(tmp_path: Path, text: str, name: str = "m.uai") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_tables_unaries_and_constant(tmp_path: Path) -> None:
    problem = read_uai(save(tmp_path, MODEL)).problem()
    graph = problem.batch.topology(0)
    assert graph.scopes == ((0, 1), (1, 2))
    assert problem.constant == pytest.approx(np.log(2.0))
    z = np.array([1, 0, 2])
    expected = np.log(0.75) + np.log(3.0) + np.log(1e-3)
    assert score(problem.batch, problem.theta, z)[0] == pytest.approx(expected)
    value = Enumerate()(problem.batch, problem.theta, problem.query((), {2: 1}), 0.0, 1.0).value[0]
    assert value == pytest.approx(np.log((0.25 * 2 + 0.75 * 4) * 5))


@pytest.mark.parametrize("kind", ["MARKOV", "BAYES"])
def test_round_trip(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    for k in range(20):
        model = random_model(rng, kind=kind)
        write_uai(tmp_path / f"{k}.uai", model)
        assert same(read_model(tmp_path / f"{k}.uai"), model)


def test_round_trip_libdai_keeps_the_function(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for k in range(20):
        model = random_model(rng)
        write_fg(tmp_path / f"{k}.fg", model)
        back = read_model(tmp_path / f"{k}.fg")
        assert back.cards == model.cards
        query = Query.all_outputs(model.problem().batch)
        for eps in (0.0, 1.0):
            values = []
            for problem in (model.problem(), back.problem()):
                belief = Enumerate()(problem.batch, problem.theta, query, eps, eps)
                values.append(belief.value[0] + problem.constant)
            assert values[1] == pytest.approx(values[0])


def test_libdai_first_variable_runs_fastest_and_labels_may_have_gaps(tmp_path: Path) -> None:
    model = read_fg(save(tmp_path, "# c\n1\n\n2\n7 3\n2 3\n2\n1 5\n4 0.5\n", "m.fg"))
    assert model.labels == (3, 7)
    assert model.scopes == ((1, 0),)
    assert model.tables[0].reshape(2, 3).tolist() == [[0.0, 0.0, 0.5], [5.0, 0.0, 0.0]]


def test_evidence_and_query(tmp_path: Path) -> None:
    model = read_uai(save(tmp_path, MODEL))
    write_evidence(tmp_path / "e", {2: 1, 0: 0})
    assert read_evidence(tmp_path / "e", model) == {0: 0, 2: 1}
    assert read_evidence(save(tmp_path, "1\n1 2 2\n", "old"), model) == {2: 2}
    assert read_evidence(save(tmp_path, "0", "none"), model) == {}
    write_query(tmp_path / "q", (2, 0))
    assert read_query(tmp_path / "q", model) == (0, 2)
    assert read_query(save(tmp_path, "# MAP variables; count = 2\n2\n1 # one\n0\n", "q2"), model) == (0, 1)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "ends where"),
        ("PETRI\n1\n", 1, "starts with MARKOV"),
        ("MARKOV\n1000000000\n2 2\n", 2, "1000000000 variables are declared"),
        ("MARKOV\n2\n2 x\n", 3, "whole number"),
        ("MARKOV\n2\n2 0\n0\n", 3, "1 or more"),
        ("MARKOV\n1\n999999999999\n0\n", 3, "limit"),
        ("MARKOV\n2\n2 2\n1\n2 0 2\n4\n1 1 1 1", 5, "at most 1"),
        ("MARKOV\n2\n2 2\n1\n2 1 1\n4\n1 1 1 1", 5, "twice"),
        ("MARKOV\n2\n2 2\n1\n2 0 1\n5\n1 1 1 1 1", 6, "should have 4"),
        ("MARKOV\n2\n2 2\n1\n2 0 1\n4\n1 1\n1", 6, "needs 4 values"),
        ("MARKOV\n2\n2 2\n1\n2 0 1\n4\n1 1\n1 nan", 8, "finite"),
        ("MARKOV\n2\n2 2\n1\n2 0 1\n4\n1 1\n1 -1", 8, "finite"),
        ("MARKOV\n2\n2 2\n1\n2 0 1\n4\n1 1\n1 1_0", 8, "finite"),
        ("MARKOV\n1\n2\n1\n1 0\n2\n1 1\n7 7", 8, "nothing should follow"),
        ("MARKOV\n" + "9" * 5000, 2, "whole number"),
    ],
)
def test_bad_models_get_one_sentence_with_the_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        read_uai(save(tmp_path, text))
    message = str(caught.value)
    assert message.startswith(f"m.uai, line {line}: ")
    assert reason in message
    assert "\n" not in message and message.endswith(".")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "starts with MARKOV"),
        ("3\n\n1\n0\n2\n1\n0 1\n", "ends where"),
        ("1\n\n2\n0 1\n2000000000 2000000000\n0\n", "limit"),
        ("1\n\n1\n0\n2\n1\n2 1\n", "at most 1"),
        ("2\n\n1\n0\n2\n0\n\n1\n0\n3\n0\n", "earlier factor"),
    ],
)
def test_bad_factor_graphs(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_model(save(tmp_path, text, "m.fg"))


@pytest.mark.parametrize("text", ["", "1", "2 0 1", "1 3 0", "1 0 2", "2 0 1 0 0", "1 0 0 0 0", "-1"])
def test_bad_evidence(tmp_path: Path, text: str) -> None:
    model = read_uai(save(tmp_path, MODEL))
    with pytest.raises(InputError, match="line 1"):
        read_evidence(save(tmp_path, text, "e"), model)


@pytest.mark.parametrize("text", ["", "2 1", "1 3", "2 1 1", "1 1 1"])
def test_bad_query(tmp_path: Path, text: str) -> None:
    model = read_uai(save(tmp_path, MODEL))
    with pytest.raises(InputError, match="line 1"):
        read_query(save(tmp_path, text, "q"), model)


def test_missing_and_oversized_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_model(tmp_path / "absent.uai")
    with pytest.raises(MssvmError, match="more than the limit"):
        read_model(save(tmp_path, MODEL), Limits(file_bytes=10))


def test_solution_formats(tmp_path: Path) -> None:
    assert format_pr(-15.2129) == "PR\n-15.2129"
    assert format_map([0, 1, 1]) == "MAP\n3 0 1 1"
    assert format_mmap([(0, 1), (4, 0)]) == "MMAP\n2 0 1 4 0"
    marginals = [np.array([0.25, 0.75]), np.array([1.0])]
    back = read_mar(save(tmp_path, format_mar(marginals), "m.MAR"))
    assert all(np.array_equal(a, b) for a, b in zip(back, marginals, strict=True))


def mutate(rng: np.random.Generator, raw: bytes) -> bytes:
    """Flip, cut, repeat or replace a few bytes or tokens."""
    tokens = [b"-1", b"0", b"1e400", b"nan", b"999999999", b"#", b"4000000000", b"\xff\xfe", b"MARKOV", b"2 2 2", b"\n"]
    for _ in range(int(rng.integers(1, 3))):
        a = int(rng.integers(0, len(raw) + 1))
        b = a + int(rng.integers(0, 8))
        how = rng.integers(6)
        if how == 0:
            raw = raw[:a] + raw[b:]
        elif how == 1:
            raw = raw[:a] + bytes(rng.integers(0, 256, max(0, min(b, len(raw)) - a), dtype=np.uint8)) + raw[b:]
        elif how == 2:
            raw = raw[:a] + b" " + tokens[rng.integers(len(tokens))] + b" " + raw[b:]
        elif how == 3:
            raw = raw[:a] + bytes(rng.integers(48, 58, 1, dtype=np.uint8)) + raw[a + 1 :]
        elif how == 4:
            words = raw.split(b" ")
            words[rng.integers(len(words))] = tokens[rng.integers(len(tokens))]
            raw = b" ".join(words)
        else:
            raw = raw[:b] + raw[a:]
    return raw


@pytest.mark.slow
def test_two_thousand_mutated_files_give_a_model_or_a_sentence(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    seeds = []
    for _ in range(10):
        model = random_model(rng, n=4)
        write_uai(tmp_path / "s.uai", model)
        write_fg(tmp_path / "s.fg", model)
        seeds += [(tmp_path / "s.uai").read_bytes(), (tmp_path / "s.fg").read_bytes()]
    limits = Limits(file_bytes=1 << 20, entries=1 << 16)
    path = tmp_path / "mutated"
    outcomes = {"model": 0, "sentence": 0}
    tracemalloc.start()
    for k in range(2_000):
        path.write_bytes(mutate(rng, seeds[k % len(seeds)]))
        try:
            problem = read_model(path, limits).problem()
            assert problem.batch.n_states <= limits.entries
            outcomes["model"] += 1
        except MssvmError as error:
            assert "line" in str(error) and "\n" not in str(error)
            outcomes["sentence"] += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    assert min(outcomes.values()) > 100


@needs_data
def test_public_files_are_read() -> None:
    models = [*sorted(DATA.glob("uai*/*.uai")), *sorted(DATA.glob("libdai_tests/tests/*.fg"))]
    assert len(models) == 47
    for path in models:
        model = read_model(path)
        for suffix, reader in ((".evid", read_evidence), (".query", read_query)):
            beside = Path(str(path) + suffix)
            if beside.exists():
                reader(beside, model)
    query = DATA / "uai_mmap_dechterlab" / "pedigree1.Q0.5.I0.map"
    assert len(read_query(query, read_model(query.with_suffix(".uai")))) == 167


@needs_data
def test_libdai_reference_marginals() -> None:
    problem = read_fg(DATA / "libdai_tests" / "tests" / "testfast.fg").problem()
    belief = Enumerate()(problem.batch, problem.theta, Query.all_outputs(problem.batch), 1.0, 1.0)
    expected = []
    lines = (DATA / "libdai_tests" / "tests" / "testfast.out").read_text().splitlines()
    for line in lines[3:19]:
        expected += [float(x) for x in line.split("(")[2].rstrip(")").split(",")]
    assert np.allclose(belief.mu.unary, expected, atol=1e-4)
