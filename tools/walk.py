"""How far it is from ``fit`` to a kernel, and how much there is to read on the way.

    python tools/walk.py [--list]

Follows ``MSSVM(Chain(hidden=2)).fit(X, y)`` and ``.predict(X)`` on a small data set, once the kernels are compiled, and
counts what lies under ``src/mssvm``: the deepest stack, functions and files that ran. Then counts over the whole
package: lines, class names defined twice, long functions and parameter lists, ``type: ignore``, the share of docstrings
and comments, and runs of six or more equal lines. ``--list`` names what was counted.

Frames of comprehensions, generators and lambdas count as frames and functions, and are listed (Python 3.12 and later
have none for most comprehensions). A kernel is a numba dispatcher called from Python, and counts as one frame, one
function and its file; kernels that it calls itself are inside the compiled code and are not seen.
"""

from __future__ import annotations

import argparse
import ast
import io
import platform
import sys
import threading
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
from numba.core.registry import CPUDispatcher

import mssvm as ms

PACKAGE = Path(ms.__file__).resolve().parent
COMPILERS = ("njit", "intrinsic", "_intrinsic")
MANY_PARAMETERS, LONG_FUNCTION, RUN = 10, 60, 6
Function = ast.FunctionDef | ast.AsyncFunctionDef


# --------------------------------------------------------------------------------------------------- the walk


class Place(NamedTuple):
    """A function of ours. Code objects themselves will not do as keys: their hash changes as Python 3.11 runs them."""

    file: str
    line: int
    name: str

    @classmethod
    def of(cls, code: CodeType) -> Place:
        return cls(code.co_filename.removeprefix(f"{PACKAGE}/"), code.co_firstlineno, code.co_qualname)

    @property
    def is_small(self) -> bool:
        """Whether it is a comprehension, a generator expression or a lambda."""
        return self.name.endswith(">")

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"


@dataclass
class Walk:
    """What ran: every function of ours, the deepest stack of them, and the deepest that ends in a kernel."""

    functions: set[Place] = field(default_factory=set)
    kernels: set[Place] = field(default_factory=set)
    deepest: list[Place] = field(default_factory=list)
    to_kernel: list[Place] = field(default_factory=list)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """The profile function: note a call of ours."""
        if event == "call" and ours(frame.f_code):
            self.functions.add(Place.of(frame.f_code))
            self.deepest = max(self.deepest, stack_of(frame), key=len)

    def kernel(self, code: CodeType, caller: FrameType) -> None:
        """Note a call of compiled code, of which the profiler sees nothing."""
        if ours(code):
            self.functions.add(Place.of(code))
            self.kernels.add(Place.of(code))
            self.to_kernel = max(self.to_kernel, [*stack_of(caller), Place.of(code)], key=len)
            self.deepest = max(self.deepest, self.to_kernel, key=len)

    def follow(self, call: Callable[[], Any]) -> None:
        """Run ``call`` and note what it calls, in all threads."""
        with watched_kernels(self.kernel):
            threading.setprofile(self)
            sys.setprofile(self)
            try:
                call()
            finally:
                sys.setprofile(None)
                threading.setprofile(None)

    def report(self, title: str, listing: bool) -> None:
        """Print the counts."""
        files = sorted({function.file for function in self.functions})
        stacks = {"to a kernel": self.to_kernel, "at any time": self.deepest}
        print(f"{title}:")
        for name, stack in stacks.items():
            small = [str(function) for function in stack if function.is_small]
            print(f"  deepest stack {name:24}{len(stack)}, of them comprehensions and lambdas {len(small)}")
            for line in small:
                print(f"    {line}")
        small_ones = sum(function.is_small for function in self.functions)
        of = f"({len(self.kernels)} of them kernels, {small_ones} comprehensions and lambdas)"
        print(f"  {'distinct functions':38}{len(self.functions)} {of}")
        print(f"  {'distinct files':38}{len(files)}")
        if listing:
            for name, stack in stacks.items():
                self._list(f"deepest stack {name}", stack)
            self._list("functions", sorted(self.functions))
            print("  functions by file:")
            for file, n in sorted(Counter(function.file for function in self.functions).items()):
                print(f"    {n:3d} {file}")

    def _list(self, title: str, functions: list[Place]) -> None:
        print(f"  {title}:")
        for k, function in enumerate(functions):
            print(f"    {k + 1:3d} {function}{'  [kernel]' if function in self.kernels else ''}")


@contextmanager
def watched_kernels(tell: Callable[[CodeType, FrameType], None]) -> Iterator[None]:
    """Call ``tell`` with the code of every dispatcher that Python calls meanwhile, and the frame that calls it."""

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        tell(self.py_func.__code__, sys._getframe(1))
        return super(CPUDispatcher, self).__call__(*args, **kwargs)

    CPUDispatcher.__call__ = watched  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del CPUDispatcher.__call__


def ours(code: CodeType) -> bool:
    return code.co_filename.startswith(f"{PACKAGE}/")


def stack_of(frame: FrameType | None) -> list[Place]:
    """Our functions on the stack that ends in ``frame``, outermost first."""
    stack = []
    while frame is not None:
        if ours(frame.f_code):
            stack.append(Place.of(frame.f_code))
        frame = frame.f_back
    return stack[::-1]


def sequences() -> tuple[list[Any], list[Any]]:
    """Twelve sequences of length 2 to 5, a sixth of the labels missing."""
    rng = np.random.default_rng(0)
    X, y = [], []
    for k in range(12):
        states = rng.integers(3, size=2 + k % 4)
        X.append(np.eye(3)[states] + rng.normal(0, 0.5, (len(states), 3)))
        y.append([ms.MISSING if rng.random() < 1 / 6 else int(s) for s in states])
    return X, y


# --------------------------------------------------------------------------------------------------- the package


@dataclass
class Source:
    """One file: its lines, tree, and the numbers of lines that are docstrings, comments alone, or imports."""

    name: str
    lines: list[str]
    tree: ast.Module
    comments: dict[int, tuple[int, str]]

    @classmethod
    def read(cls, path: Path) -> Source:
        text = path.read_text("utf-8")
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments = {t.start[0]: (t.start[1], t.string) for t in tokens if t.type == tokenize.COMMENT}
        return cls(str(path.relative_to(PACKAGE)), text.splitlines(), ast.parse(text), comments)

    @property
    def is_command(self) -> bool:
        return self.name.startswith("cli/") or self.name == "cli.py"

    def functions(self) -> Iterator[Function]:
        """All functions but kernels, which are those that are compiled."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, Function)]
        calls = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and is_compiler(node))
        by_call = {arg.id for call in calls for arg in call.args if isinstance(arg, ast.Name)}
        kernels = (f for f in found if f.name in by_call or any(map(is_compiler, f.decorator_list)))
        compiled = {inner for kernel in kernels for inner in ast.walk(kernel)}
        return (node for node in found if node not in compiled)

    def docstrings(self) -> set[int]:
        """Lines of docstrings, also those under assignments."""
        alone = (node for node in ast.walk(self.tree) if isinstance(node, ast.Expr))
        strings = (n for n in alone if isinstance(n.value, ast.Constant) and isinstance(n.value.value, str))
        return {k for n in strings for k in range(n.lineno, (n.end_lineno or n.lineno) + 1)}

    def alone(self) -> set[int]:
        """Lines with nothing but a comment."""
        return {k for k, (column, _) in self.comments.items() if not self.lines[k - 1][:column].strip()}

    def bare(self) -> list[tuple[int, str]]:
        """Lines of code without indentation and comments; blank lines and imports are left out."""
        nodes = [n for n in ast.walk(self.tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
        imports = {k for n in nodes for k in range(n.lineno, (n.end_lineno or n.lineno) + 1)}
        out = []
        for k, line in enumerate(self.lines, 1):
            text = (line[: self.comments[k][0]] if k in self.comments else line).strip()
            if text and k not in imports:
                out.append((k, text))
        return out


def is_compiler(node: ast.expr) -> bool:
    """Whether a decorator, or a call, hands functions to Numba, as code or as something that makes code."""
    name = node.func if isinstance(node, ast.Call) else node
    return isinstance(name, ast.Name) and name.id in COMPILERS


def parameters(function: Function) -> int:
    """Number of parameters, ``self`` and ``cls`` aside."""
    a = function.args
    names = [arg.arg for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg)))]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def repeated_classes(sources: list[Source]) -> list[str]:
    """Names of classes that are defined more than once, with their files."""
    where = defaultdict(list)
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                where[node.name].append(source.name)
    return [f"{name}: {', '.join(files)}" for name, files in sorted(where.items()) if len(files) > 1]


def repeated_runs(sources: list[Source]) -> list[str]:
    """Pairs of places with ``RUN`` or more equal lines; a longer run is one pair."""
    bare = [source.bare() for source in sources]
    at: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    for f, lines in enumerate(bare):
        for k in range(len(lines) - RUN + 1):
            at[tuple(text for _, text in lines[k : k + RUN])].append((f, k))
    matches = {
        (one, two)
        for places in at.values()
        for one, two in combinations(places, 2)
        if one[0] != two[0] or two[1] - one[1] >= RUN
    }
    out = []
    for (f, i), (g, j) in sorted(matches):
        if ((f, i - 1), (g, j - 1)) in matches:
            continue
        n = 0
        while ((f, i + n + 1), (g, j + n + 1)) in matches:
            n += 1
        out.append(f"{sources[f].name}:{bare[f][i][0]} = {sources[g].name}:{bare[g][j][0]} ({RUN + n} lines)")
    return out


def report_package(listing: bool) -> None:
    """Counts over all files."""
    sources = [Source.read(path) for path in sorted(PACKAGE.rglob("*.py"))]
    total = sum(len(s.lines) for s in sources)
    remarks = sum(len(s.docstrings() | s.alone()) for s in sources)
    many = [
        f"{s.name}:{f.lineno} {f.name} ({parameters(f)})"
        for s in sources
        if not s.is_command
        for f in s.functions()
        if f.name != "__init__" and parameters(f) > MANY_PARAMETERS
    ]
    long = [
        f"{s.name}:{f.lineno} {f.name} ({length(f)} lines)"
        for s in sources
        for f in s.functions()
        if length(f) > LONG_FUNCTION
    ]
    ignores = Counter(s.name for s in sources for _, text in s.comments.values() if "type: ignore" in text)
    print("package:")
    print(f"  lines                                 {total} in {len(sources)} files")
    print(f"  docstrings and comments               {100 * remarks / total:.1f}% of the lines")
    counts = {
        "class names defined twice or more": repeated_classes(sources),
        f"functions of more than {MANY_PARAMETERS} parameters": many,
        f"functions of more than {LONG_FUNCTION} lines": long,
        f"pairs of equal runs of {RUN} lines": repeated_runs(sources),
    }
    print(f"  {'type: ignore':38}{ignores.total()}")
    for name, found in counts.items():
        print(f"  {name:38}{len(found)}")
        if listing or name.startswith("class"):
            for line in found:
                print(f"    {line}")
    if listing:
        print("  type: ignore by file:")
        for name, n in sorted(ignores.items()):
            print(f"    {name}: {n}")


def main() -> None:
    """Walk, count, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name functions, files and whatever else is counted")
    listing = parser.parse_args().list
    X, y = sequences()
    model = ms.MSSVM(ms.Chain(hidden=2), max_iter=5, random_state=0)
    model.fit(X, y).predict(X)
    fit, predict = Walk(), Walk()
    fit.follow(lambda: model.fit(X, y))
    predict.follow(lambda: model.predict(X))
    print(f"Python {platform.python_version()}")
    fit.report("fit", listing)
    predict.report("predict", listing)
    report_package(listing)


if __name__ == "__main__":
    main()
