"""Settings of the documentation site, which `.ci/docs` builds from the pages of the repository."""

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

import kerv_jax

project = "kerv_jax"
author = "The kerv_jax authors"
copyright = f"2026, {author}"
version = release = kerv_jax.__version__

extensions = [
  "myst_parser",
  "sphinx.ext.autodoc",
  "sphinx.ext.napoleon",
  "sphinx.ext.viewcode",
  "sphinx_copybutton",
]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "results/*/*.md"]
html_theme = "furo"
html_title = f"kerv_jax {version}"
html_copy_source = False

myst_heading_anchors = 3
autodoc_typehints = "none"  # signatures are long enough, and docstrings say what is allowed
autodoc_member_order = "groupwise"
napoleon_use_ivar = True
napoleon_use_rtype = False


html_math_renderer = "mathml"


def setup(app: Any) -> None:
  """Shows formulas as MathML, for which a browser needs no script from elsewhere."""

  def renderer(block: bool) -> tuple[Any, None]:
    def visit(writer: Any, node: nodes.Element) -> None:
      writer.body.append(tex2mathml(node.astext(), as_block=block))
      raise nodes.SkipNode

    return visit, None

  app.add_html_math_renderer("mathml", renderer(False), renderer(True))
