"""How Sphinx makes a site of the documentation: `scripts/site` runs it.

README, the changelog and the examples become pages too; the reference is made of docstrings.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
MADE: Final = DOCS / "made"
"""Pages that are made of other files, while the site is built; not kept."""

OUTPUT: Final = re.compile(r"<!-- output of (?P<command>scripts/[\w -]+?) -->\n.*?<!-- end of output -->", re.DOTALL)
"""Stands in a page for what a script prints, with words between for readers of the page itself."""

sys.path[:0] = [str(ROOT), str(ROOT / "workers")]

project = "atomr-mp"
author = "The atomr-mp authors"
copyright = author  # noqa: A001 (Sphinx's name)
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
exclude_patterns = ["site", "measurements/*.json"]
root_doc = "made/index"
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]
html_theme = "furo"
html_title = project
html_show_sourcelink = False
html_show_copyright = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

EXAMPLES: Final = ["embed", "search_stdlib", "tensor_parallel", "digits", "digits_ray", "train_digits", "raw_client"]

TREE: Final = {
    "Use": [
        "getting-started",
        "writing-actors",
        "batches",
        "streams",
        "resident-memory",
        "worlds",
        "buffers",
        "libraries",
        "gpus",
    ],
    "Libraries": [f"libraries/{path.stem}" for path in sorted((DOCS / "libraries").glob("*.md"))],
    "Operate": [
        "operating",
        "settings",
        "watching",
        "runbook",
        "serving",
        "http-server",
        "openai",
        "oip",
        "kubernetes",
        "remote",
        "ray",
        "failure-model",
        "errors",
        "testing",
    ],
    "Reference": ["made/pools", "made/actors", "made/library-methods", "made/errors", "made/faults"],
    "Examples": [f"made/{name}" for name in EXAMPLES],
    "Beside others": ["performance", "comparison", "coming-from", "from-cupy", "measurements/README"],
    "Inside": [
        "architecture",
        "memory",
        "laws",
        "device-life",
        "protocol",
        "protocol-messages",
        "adding-a-library",
        "notes/decisions",
        "notes/speed",
        "made/changelog",
    ],
}
"""Pages by the part of the site that they are in."""

REFERENCE: Final = {
    "pools": (
        "Pools and devices",
        [
            "autofunction:: atomr_mp.start",
            "autofunction:: atomr_mp.connect",
            "autoclass:: atomr_mp.Pool",
            "autoclass:: atomr_mp.Device",
            "autoclass:: atomr_mp.Reply",
            "autoclass:: atomr_mp.ReplyStream",
            "autoclass:: atomr_mp.GpuRef\n   :inherited-members:",
        ],
    ),
    "actors": ("Actors", ["automodule:: atomr_mp_workers.actor"]),
    "errors": ("Errors", ["automodule:: atomr_mp.errors"]),
    "faults": ("Faults for tests", ["automodule:: atomr_mp.testing.faults", "automodule:: atomr_mp.testing.ledger"]),
}
"""Title and directives of each page of the reference; that of the libraries follows from the tree."""


def setup(app: Any) -> None:
    """Have the pages made before they are read."""
    app.connect("builder-inited", lambda _app: _make())
    app.connect("source-read", _with_output)
    _import_types("atomr_mp.client.reply")
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=400)  # before napoleon


def _with_output(_app: Any, _page: str, source: list[str]) -> None:
    """Put the output of a script where a page names it: tables of the code, which are not kept."""
    source[0] = OUTPUT.sub(lambda found: _printed(found["command"]), source[0])


def _printed(command: str) -> str:
    script, *arguments = command.split()
    done = subprocess.run([sys.executable, str(ROOT / script), *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def _as_restructured_text(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Rewrite a docstring, in which backticks stand for code and no other mark-up is meant."""
    for at, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [re.sub(r"([*|])", r"\\\1", part) for part in parts[::2]]
        lines[at] = "``".join(parts) if len(parts) % 2 else line


def _import_types(name: str) -> None:
    """Import into a module the names that it imports for types only, since autodoc evaluates its annotations."""
    module = importlib.import_module(name)
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    for block in (node for node in tree.body if isinstance(node, ast.If)):
        source = ast.Module(body=block.body, type_ignores=[])
        exec(compile(source, str(module.__file__), "exec"), vars(module))  # noqa: S102 (imports of the project's own)


def _make() -> None:
    MADE.mkdir(exist_ok=True)
    pages = {"index": _home(), "changelog": _moved("CHANGELOG.md")}
    for name in EXAMPLES:
        path = ROOT / "examples" / f"{name}.py"
        pages[name] = f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"
    for name, (title, directives) in REFERENCE.items():
        pages[name] = _reference(title, directives)
    generated = sorted(path.stem for path in (ROOT / "atomr_mp/libraries/generated").glob("[a-z]*.py"))
    pages["library-methods"] = _reference(
        "Libraries",
        [
            "autoclass:: atomr_mp.libraries.base.LibraryReference\n   :no-members:",
            *(f"automodule:: atomr_mp.libraries.generated.{name}" for name in generated),
        ],
    )
    for name, text in pages.items():
        MADE.joinpath(f"{name}.md").write_text(text, encoding="utf-8")


def _home() -> str:
    """Return README as the first page, with the tree of the site."""
    trees = [
        f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(f"/{page}" for page in pages) + "\n```\n"
        for caption, pages in TREE.items()
    ]
    return _moved("README.md") + "\n" + "\n".join(trees)


def _moved(name: str) -> str:
    """Return a page of the project's root with its links as they are from the pages that are made."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/", "](../", text)
    text = re.sub(r"\]\(examples/(\w+)\.py\)", r"](\1.md)", text)
    text = text.replace("](CHANGELOG.md)", "](changelog.md)")
    return re.sub(r"\[([^]]+)\]\((?:CONTRIBUTING\.md|LICENSE)\)", r"\1", text)


def _reference(title: str, directives: list[str]) -> str:
    body = "\n".join(f".. {each}\n" for each in directives)
    return f"# {title}\n\n```{{eval-rst}}\n{body}```\n"
