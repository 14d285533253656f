"""Settings of the documentation; ``make docs`` builds it."""

from importlib.metadata import version as installed

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


def as_written(app, what, name, obj, options, lines):
    """Docstrings are plain text with aligned formulas: shown as they are."""
    lines[:] = ["::", "", *(f"    {line}" for line in lines)] if any(lines) else []


def setup(app):
    app.connect("autodoc-process-docstring", as_written)
