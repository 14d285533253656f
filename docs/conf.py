"""Settings of the documentation; ``make docs`` builds it."""

import re
from importlib.metadata import version as installed
from textwrap import wrap

project = "mssvm"
author = "The mssvm authors"
copyright = "the mssvm authors"
version = release = installed("mssvm")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "mssvm"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
suppress_warnings = ["misc.highlighting_failure"]  # of UAI files
autodoc_typehints = "none"
autodoc_member_order = "bysource"
WIDTH = 84  # characters of a docstring on a wide page


def reflowed(lines):
    """Paragraphs of prose in lines that fit the column; examples, and formulas (lines with gaps), as they are."""
    prose, example = [], False
    for line in [*lines, ""]:
        text, indent = line.strip(), len(line) - len(line.lstrip())
        example = text.startswith(">>>") or (example and bool(text))
        plain = text and not example and "  " not in text and not set(text) <= {"-"}
        if prose and not (plain and indent == prose[0] and not re.match(r"[\w, ]+ : ", text)):  # a parameter
            yield from wrap(" ".join(prose[1:]), WIDTH, initial_indent=" " * prose[0], subsequent_indent=" " * prose[0])
            prose = []
        if plain:
            prose = [*(prose or [indent]), text]
        else:
            yield line


def as_written(app, what, name, obj, options, lines):
    """Docstrings are plain text with aligned formulas: shown as such."""
    lines[:] = ["::", "", *(f"    {line}" for line in reflowed(lines))] if any(lines) else []


def setup(app):
    app.connect("autodoc-process-docstring", as_written)
