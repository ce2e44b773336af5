"""Settings of the documentation site, which `.ci/docs` builds from the pages of the repository."""

import importlib
import inspect
import pathlib
import pkgutil
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urlsplit

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from jupyter_client.manager import KernelManager
from sphinx import addnodes
from sphinx.util import logging

import kerv_jax

KernelManager.transport_encryption.default_value = "auto"  # or else each program warns

project = "kerv_jax"
author = "The kerv_jax authors"
copyright = f"2026, {author}"
version = release = kerv_jax.__version__

extensions = [
  "myst_nb",
  "sphinx.ext.autodoc",
  "sphinx.ext.napoleon",
  "sphinx.ext.viewcode",
  "sphinx_copybutton",
]
root_doc = "docs/index"
include_patterns = ["CHANGELOG.md", "CONTRIBUTING.md", "docs/**.md", "results/*/*.md"]
html_theme = "furo"
html_title = f"kerv_jax {version}"
html_copy_source = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]

myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_show_tb = True  # of a cell that fails, which is a warning
nb_output_stderr = "warn"
nb_merge_streams = True
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
  app.connect("doctree-resolved", _make_cards)
  app.connect("env-check-consistency", _check_reference)
  app.connect("viewcode-follow-imported", _module_of)
  app.connect("build-finished", _check_links)


def _make_cards(app: Any, doctree: nodes.document, page: str) -> None:
  """Makes the index of the gallery: the first figure, title and first sentence of each page."""
  if page != "docs/gallery":
    return
  for toctree in list(doctree.findall(addnodes.toctree)):
    cards = nodes.bullet_list()
    for _, name in toctree["entries"]:
      shown = app.env.get_doctree(name)
      title = app.env.titles[name].astext()
      sentence = next(shown.findall(nodes.paragraph)).astext().partition(". ")[0].rstrip(".")
      uri = app.builder.get_relative_uri(page, name)
      link = nodes.reference("", title, refuri=uri, internal=True)
      for figure in list(shown.findall(nodes.image))[:1]:  # none where pages are not run
        link.insert(0, nodes.image(uri=figure["uri"], candidates=figure["candidates"], alt=""))
      text = nodes.paragraph("", f"{sentence}.")
      cards += nodes.list_item("", addnodes.compact_paragraph("", "", link), text)
    toctree.replace_self(cards)


def _check_reference(app: Any, env: Any) -> None:
  """Warns of public names that the reference has not."""
  described = env.get_domain("py").objects
  rooms = [f"kerv_jax.{room.name}" for room in pkgutil.iter_modules(kerv_jax.__path__)]
  for module in map(importlib.import_module, ["kerv_jax", *rooms]):
    for name in getattr(module, "__all__", ()):
      known = {f"{module.__name__}.{name}", f"kerv_jax.{name}"}
      if not known & described.keys() and not inspect.ismodule(getattr(module, name)):
        logging.getLogger(__name__).warning("%s.%s is not described", module.__name__, name)


def _module_of(app: Any, module: str, name: str) -> str | None:
  """The module whose source shows a name: for what is in a class, that of the class."""
  found = getattr(importlib.import_module(module), name.partition(".")[0], None)
  return getattr(found, "__module__", None)


def _check_links(app: Any, error: Exception | None) -> None:
  """Warns of links within the site that lead nowhere."""
  if error or app.builder.name != "html":
    return
  site = pathlib.Path(app.outdir)
  pages = {path: _Page(path) for path in site.rglob("*.html")}
  for path, page in pages.items():
    for link in page.links:
      address = urlsplit(link)
      if address.scheme or address.netloc:
        continue
      target = (path.parent / unquote(address.path)).resolve() if address.path else path
      place = unquote(address.fragment)
      if not target.exists() or (place and target in pages and place not in pages[target].places):
        where = path.relative_to(site)
        logging.getLogger(__name__).warning("%s: %s leads nowhere", where, link)


class _Page(HTMLParser):
  """The links of a page, and the places in it that links can lead to."""

  def __init__(self, path: pathlib.Path) -> None:
    super().__init__()
    self.links: list[str] = []
    self.places: set[str] = set()
    self.feed(path.read_text())

  def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
    for name, value in attrs:
      if value and name in ("href", "src"):
        self.links.append(value)
      elif value and name == "id":
        self.places.add(value)
