"""What examples/search_stdlib.py searches: the documentation of this Python's own library."""

from __future__ import annotations

import itertools
import shutil
import textwrap
from pathlib import Path

import search_stdlib


def test_the_library_is_read_without_being_imported(tmp_path: Path) -> None:
    """Modules, classes and functions, under the names by which they are imported."""
    found = dict(itertools.islice(search_stdlib.documentation(), 500))
    assert len(found) == 500
    library = Path(textwrap.__file__).parent
    for name in ("textwrap.py", "this.py", "_collections_abc.py"):
        shutil.copy(library / name, tmp_path)
    shutil.copytree(library / "json", tmp_path / "json")
    found |= (some := dict(search_stdlib.documentation(tmp_path)))
    assert some["textwrap.dedent"] == "Remove any common leading whitespace from every line in `text`."
    assert "json" in some
    assert "this" not in some, "it has no docstring"
    assert all(text and "\n" not in text for text in found.values())
    assert not [name for name in found if "._" in name or name.startswith(("_", "test."))]


def test_only_what_is_public_and_documented_is_read(tmp_path: Path) -> None:
    """A file that is no Python is passed over."""
    (tmp_path / "broken.py").write_text("def")
    (tmp_path / "_private.py").write_text('"""Private."""')
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text(
        '"""A\n  package.\n\nMore."""\nclass C:\n  def f(self):\n    "Go."\ndef _g(): "No."'
    )
    assert list(search_stdlib.documentation(tmp_path)) == [("package", "A package."), ("package.C.f", "Go.")]
