"""How Sphinx builds the site: `make docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE / "_ext")]

from tramark import __version__  # noqa: E402

project = "tramark"
author = "The tramark authors"
copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "commands", "docstrings"]
exclude_patterns = ["_build", "_ext"]
suppress_warnings = ["myst.strikethrough"]

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]

# Docstrings write code as `code`, and say types in the signature.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True}
# Options begin with two hyphens, and stay so.
smartquotes = False

html_theme = "furo"
html_title = "tramark"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#8a3b12", "color-brand-content": "#8a3b12"},
    "dark_css_variables": {"color-brand-primary": "#f0a878", "color-brand-content": "#f0a878"},
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_exclude = ".linenos, .gp, .go"
