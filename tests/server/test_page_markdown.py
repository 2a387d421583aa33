"""The page's Markdown: what it shows, what it never makes, and how long the worst takes."""

from collections.abc import Iterator

import pytest

from support.browser import MISSING, Browser, chromium
from support.mock_api import mock_api

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

SHOW = """
const {Markdown} = await import('/markdown.js');
const root = document.createElement('div');
const markdown = new Markdown(root);
"""


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with mock_api() as api, chromium() as browser:
        browser.open(api.address)
        yield browser


def run(page: Browser, script: str, *arguments: object) -> object:
    return page.run(f"return (async (given) => {{{SHOW}{script}}})(arguments)", *arguments)


def shown(page: Browser, text: str) -> str:
    """The HTML of a text, without what only copies and styles."""
    return str(
        run(
            page,
            "markdown.update(given[0]); root.querySelectorAll('figcaption').forEach((one) => one.remove());"
            "for (const one of root.querySelectorAll('*')) for (const {name} of [...one.attributes])"
            " if (!['href', 'start'].includes(name)) one.removeAttribute(name);"
            "return root.innerHTML",
            text,
        )
    )


def li(text: str) -> str:
    return f"<li><p>{text}</p></li>"


def listing(text: str) -> str:
    return f"<figure><pre><code>{text}</code></pre></figure>"


TABLE = (
    "<div><table><thead><tr><th>b</th><th>c|d</th></tr></thead>"
    "<tbody><tr><td><code>e|f</code></td><td></td></tr></tbody></table></div>"
)


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a\nb\n\nc", "<p>a<br>b</p><p>c</p>"),
        ("# A #\n### B", "<h3>A</h3><h5>B</h5>"),
        ("**a *b* c** _d_", "<p><strong>a <em>b</em> c</strong> <em>d</em></p>"),
        ("***e*** ~~f~~ __g__", "<p><strong><em>e</em></strong> <del>f</del> <strong>g</strong></p>"),
        ("2 * 3 * 4 and snake_case_name and **", "<p>2 * 3 * 4 and snake_case_name and **</p>"),
        ("`a*b*` and ``c`d``", "<p><code>a*b*</code> and <code>c`d</code></p>"),
        (r"\*no\* \# \\", r"<p>*no* # \</p>"),
        (r"so \(a_1 + b_1\) and $$x*y*z$$", "<p>so <code>a_1 + b_1</code> and <code>x*y*z</code></p>"),
        ("- a\n- b\n  1. c\n- e", f"<ul>{li('a')}<li><p>b</p><ol>{li('c')}</ol></li>{li('e')}</ul>"),
        (
            "3. a\n   ```py\n   x\n     y\n   ```\n4. b",
            '<ol start="3"><li><p>a</p>' + listing("x\n  y") + f"</li>{li('b')}</ol>",
        ),
        ("- [x] a\n- [ ] b", "<ul><li><input><p>a</p></li><li><input><p>b</p></li></ul>"),
        ("> a\n> - b", "<blockquote><p>a</p><ul><li><p>b</p></li></ul></blockquote>"),
        ("```\n<b>&amp;\n", listing("&lt;b&gt;&amp;amp;")),
        ("~~~\n```\n~~~\n\n---", listing("```") + "<hr>"),
        ("a\n| b | c\\|d |\n|--|:-:|\n| `e|f` |", f"<p>a</p>{TABLE}"),
        ("[a](https://x.org/y_(z)) b", '<p><a href="https://x.org/y_(z)">a</a> b</p>'),
        ("See https://x.org/a_b.", '<p>See <a href="https://x.org/a_b">https://x.org/a_b</a>.</p>'),
        ("<https://y.org/> a", '<p><a href="https://y.org/">https://y.org/</a> a</p>'),
        ("![a](https://x.org/i.png)", '<p><a href="https://x.org/i.png">a</a></p>'),
    ],
)
def test_markdown(page: Browser, text: str, html: str) -> None:
    assert shown(page, text) == html


HOSTILE = [
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "[a](javascript:alert(1)) [b](data:text/html,x) [c](vbscript:x) [d](file:///etc/passwd) [e](//x.org)",
    "[a](java\tscript:alert(1)) <javascript:alert(1)> [b](  JaVaScRiPt:alert(1))",
    '[a](https://x.org/"onclick="alert(1))',
    "`<b>` **<i>** # <h1>\n\n| <td> |\n|--|\n| <script> |",
    "```<script>\n</code></pre><script>alert(1)</script>\n```",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_model_cannot_make_elements(page: Browser, text: str) -> None:
    found = run(
        page,
        "markdown.update(given[0]); const all = [...root.querySelectorAll('*')];"
        "return [all.map((one) => one.localName), all.flatMap((one) => one.getAttributeNames()),"
        " [...root.querySelectorAll('a')].map((one) => [one.protocol, one.rel])]",
        text,
    )
    assert isinstance(found, list)
    names, attributes, links = found
    assert not set(names) & {"script", "img", "i", "b", "h1", "iframe", "style"}
    assert not [name for name in attributes if name.startswith("on") or name == "style"]
    assert all(protocol == "https:" and "noopener" in rel for protocol, rel in links)


def test_a_text_that_grows_ends_as_the_whole(page: Browser) -> None:
    """Whatever the pieces, the page shows in the end what it shows of the text at once."""
    text = "# A\n\nb **c** `d`\n\n- e\n  - f\n\n    g\n\n```py\nx\n\ny\n```\n\n| h | i |\n|--|--|\n| j | k |\n\n> l"
    different = run(
        page,
        "const whole = document.createElement('div'); new Markdown(whole).update(given[0]);"
        "for (const size of [1, 2, 3, 7]) {"
        " const grown = document.createElement('div'); const writer = new Markdown(grown);"
        " for (let end = 0; end < given[0].length + size; end += size) writer.update(given[0].slice(0, end));"
        " if (grown.innerHTML !== whole.innerHTML) return [size, grown.innerHTML];"
        "} return null",
        text,
    )
    assert different is None


def test_a_listing_that_grows_keeps_its_node(page: Browser) -> None:
    script = (
        "markdown.update('```py\\na'); const node = root.querySelector('pre'); markdown.update('```py\\na = 1\\nb');"
        "return [node === root.querySelector('pre'), node.textContent]"
    )
    assert run(page, script) == [True, "a = 1\nb"]


# What a model may get stuck in.
UNITS = [
    "*", "**a ", "_a ", "`", "``a` ", "[", "[a](", "![", "<", "http://", "> ", "- ", "\n- a", "1. ", "|",
    "| a |\n|--|\n", "\\(", "$$", "#", "~", "\n```", "-\n", " ", "h", "\\", "a\n", "*a **b _c ", "(((",
    "[a](x(", "  \n",
]  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
def test_nothing_takes_long(page: Browser, unit: str) -> None:
    """100,000 characters of it cost a pause at most."""
    script = "const begun = performance.now(); markdown.update(given[0]); return performance.now() - begun"
    seconds = run(page, script, unit * (100_000 // len(unit)))
    assert isinstance(seconds, int | float) and seconds < 3000
