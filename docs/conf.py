"""Settings of the documentation; ``make docs`` builds it."""

import sys
from importlib.metadata import version as installed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "mssvm"
author = "The mssvm authors"
copyright = "the mssvm authors"
version = release = installed("mssvm")

extensions = ["myst_parser", "sphinx.ext.autodoc", "house_docstrings"]
exclude_patterns = ["_build", "_ext"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "mssvm"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
suppress_warnings = ["misc.highlighting_failure"]  # of UAI files
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["spacy", "torch", "transformers"]  # pages are built without them
