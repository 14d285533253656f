"""Docstrings of the house as reStructuredText: prose, formulas, parameters and examples, each rendered as what it is.

Parameters            a list of definitions
----------
name : type
    text
an indented block, or lines with gaps     a formula, as it is written
>>> ...                                   an example, with colours
"""

import inspect
import re

PARAMETER = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*) : (.+)")
SECTIONS = ("Parameters", "Returns", "Attributes")


def escaped(text):
    """Prose without characters that reStructuredText would read as marks; text in double backquotes is code."""
    parts = re.split(r"(``.+?``)", text)
    for k in range(0, len(parts), 2):
        part = re.sub(r"([\\*|`])", r"\\\1", parts[k])
        parts[k] = re.sub(r"_(?!\w)", r"\\_", part)
    return "".join(parts)


def blocks(lines):
    """Lines in groups without blank ones."""
    group = []
    for line in [*lines, ""]:
        if line.strip():
            group.append(line)
        elif group:
            yield group
            group = []


def indent_of(line):
    return len(line) - len(line.lstrip())


def definitions(group):
    """Parameters: names in bold with their types, and what they are."""
    text = []
    for line in [*group, "end : of the parameters"]:
        found = PARAMETER.match(line)
        if not found or indent_of(line):
            text.append(line.strip())
            continue
        if text:
            yield f"    {escaped(' '.join(text))}"
            text = []
        if line in group:
            names = ", ".join(f"**{escaped(name)}**" for name in found[1].split(", "))
            yield from ("", f"{names} : {escaped(found[2])}")
    yield ""


def rendered(lines):
    """The lines of a docstring as reStructuredText."""
    in_parameters = False
    for group in blocks(lines):
        first = group[0].strip()
        if first in SECTIONS and len(group) > 1 and set(group[1].strip()) == {"-"}:
            yield from ("", f".. rubric:: {first}", "")
            in_parameters = True
            group = group[2:]
        if not group:
            continue
        if first.startswith(">>>"):
            indent = min(indent_of(line) for line in group)
            yield from ("", *(line[indent:] for line in group), "")
        elif in_parameters and (PARAMETER.match(group[0]) or indent_of(group[0])):
            yield from definitions(group)
        elif indent_of(group[0]) or any(re.search(r"\S {2,}\S", line) for line in group):
            yield from ("", "::", "", *(f"    {line}" for line in group), "")
            in_parameters = False
        else:
            yield from ("", escaped(" ".join(line.strip() for line in group)), "")
            in_parameters = False


def render(app, what, name, obj, options, lines):
    lines[:] = list(rendered(lines))


def decorate_nothing(mock, *args, **settings):
    """Decorators of a package that is absent leave functions as they are, however many there are."""
    return args[0] if len(args) == 1 and inspect.isfunction(args[0]) else mock


def setup(app):
    from sphinx.ext.autodoc.mock import _MockObject

    _MockObject.__call__ = decorate_nothing
    app.connect("autodoc-process-docstring", render)
    return {"parallel_read_safe": True}
