"""The files of the chat page: complete, self-contained, and what a strict content security policy lets through."""

import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "runtime/server/page"
TEXTS = {path.name: path.read_text() for path in sorted(PAGE.iterdir()) if path.is_file()}
BUNDLED = {"bundle/LICENSES.txt", "bundle/libraries.css", "bundle/libraries.js"}
SCRIPTS = sorted(name for name in TEXTS if name.endswith(".js"))
# Names of formats, not places that a browser asks.
NAMESPACES = {"http://www.w3.org/2000/svg"}


class Tags(HTMLParser):
    """The start tags of a document with their attributes, and the text within scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self._tag = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag in ("script", "style"):
            self.inline += data.strip()


INDEX = Tags(TEXTS["index.html"])


def references(name: str) -> set[str]:
    """The files of the page that one names: what HTML loads, and modules import."""
    text = TEXTS[name]
    found = set(re.findall(r'(?:src|href)="([^"#]+)', text)) if name.endswith(".html") else set()
    found |= {path.removeprefix("./") for path in re.findall(r'(?:from |import\()"([^"]+)"', text)}
    return found - BUNDLED


def test_every_file_is_there_and_used() -> None:
    reached, wanted = {"index.html"}, ["index.html"]
    while wanted:
        name = wanted.pop()
        missing = references(name) - TEXTS.keys()
        assert not missing, f"{name} names {missing}, which is not there"
        wanted += references(name) - reached
        reached |= references(name)
    assert reached == TEXTS.keys()


def test_no_other_host() -> None:
    for name, text in TEXTS.items():
        found = set(re.findall(r"(?:https?:)?//[a-z0-9-]+\.[a-z0-9.-]+[^\s\"'<>`]*", text)) - NAMESPACES
        assert not found, f"{name} names {found}"
        assert "@import" not in text and "url(" not in text, f"{name} loads what its tags do not tell"


def test_nothing_inline() -> None:
    assert not INDEX.inline
    for tag, attributes in INDEX.tags:
        forbidden = {name for name in attributes if name == "style" or name.startswith("on")}
        assert not forbidden, f"<{tag}> has {forbidden}"
        assert tag != "style" and not str(attributes.get("href")).startswith("javascript:")


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_make_text_not_markup(name: str) -> None:
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert forbidden not in TEXTS[name]
    elements = TEXTS[name].replace('attrGet("style")', "")  # markdown-it's tokens have attributes of their own
    assert '"style"' not in elements, "an attribute `style` is what the policy forbids"


def test_every_id_that_a_script_asks_for_is_there() -> None:
    ids = [attributes["id"] for _, attributes in INDEX.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for name in SCRIPTS:
        asked = set(re.findall(r'(?:(?<![.\w])(?:get|set)|getElementById)\("([\w-]+)"', TEXTS[name]))
        asked |= set(re.findall(r'querySelector\("#([\w-]+)"\)', TEXTS[name]))
        assert asked <= set(ids), name


def test_every_symbol_is_there() -> None:
    symbols = set(re.findall(r'<symbol id="icon-([\w-]+)"', TEXTS["index.html"]))
    used = set(re.findall(r'href="#icon-(\w+)"', TEXTS["index.html"]))
    used |= {name for script in SCRIPTS for name in re.findall(r'\bicon(?:Button)?\(\s*"(\w+)"', TEXTS[script])}
    assert used <= symbols


def test_buttons_and_fields_have_names() -> None:
    """What shows only a picture says what it does; a field has a label around it, before it or of its own."""
    labelled = {attributes.get("for") for tag, attributes in INDEX.tags if tag == "label"}
    for tag, attributes in INDEX.tags:
        if tag == "button" and "icon" in str(attributes.get("class")):
            assert attributes.get("aria-label"), attributes
        if tag in ("input", "textarea", "select") and "id" in attributes:
            assert attributes.get("aria-label") or attributes["id"] in labelled, attributes


def test_the_wheel_takes_the_page() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]
    assert build["wheel"]["packages"]["trigraph/runtime"] == "runtime"
    left_out = build["wheel"]["exclude"] + build["sdist"]["exclude"]
    assert not [name for name in TEXTS for pattern in left_out if Path(name).match(pattern)]
    assert build["sdist"]["include"] == ["runtime/server/page/bundle/"]  # which git ignores


def test_the_libraries_are_complete(bundle: Path) -> None:
    """The style sheet's fonts are there, and the licence of every package."""
    fonts = set(re.findall(r"url\(\"?([^)\"]+)", (bundle / "libraries.css").read_text()))
    assert fonts and all((bundle / font).is_file() for font in fonts)
    licences = (bundle / "LICENSES.txt").read_text()
    for name in ("entities", "highlight.js", "katex", "linkify-it", "lowlight", "markdown-it", "mdurl", "uc.micro"):
        assert re.search(rf"^{re.escape(name)} [\d.]+ \(", licences, re.MULTILINE), name
    assert "SIL Open Font License" in licences
