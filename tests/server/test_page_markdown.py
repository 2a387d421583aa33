"""The page's Markdown: what it shows, what it never makes, and how long the worst takes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.pages.browser import Browser
from support.pages.mock_api import mock_api

SHOW = """
const {Markdown} = await import('/markdown.js');
const root = document.createElement('div');
const markdown = new Markdown(root);
"""


@pytest.fixture(scope="module")
def page(window: Browser, bundle: Path) -> Iterator[Browser]:
    with mock_api() as api:
        window.open(api.address)
        window.complaints()
        yield window
        assert not [text for text in window.complaints() if "Failed to load resource" not in text]


def run(page: Browser, script: str, *arguments: object) -> object:
    return page.run(f"return (async (given) => {{{SHOW}{script}}})(arguments)", *arguments)


def shown(page: Browser, text: str) -> str:
    """The HTML of a text, without what only copies and styles."""
    return str(
        run(
            page,
            "markdown.update(given[0]); root.querySelectorAll('figcaption').forEach((one) => one.remove());"
            "const source = (formula) => `[${formula.querySelector('annotation').textContent}]`;"
            "root.querySelectorAll('.katex').forEach((one) => one.replaceWith(source(one)));"
            "root.querySelectorAll('code span').forEach((one) => one.replaceWith(...one.childNodes));"
            "for (const one of root.querySelectorAll('*')) for (const {name} of [...one.attributes])"
            " if (!['href', 'start'].includes(name)) one.removeAttribute(name);"
            "return root.innerHTML",
            text,
        )
    )


def li(text: str) -> str:
    return f"<li>{text}</li>"


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
        ("***e*** ~~f~~ __g__", "<p><em><strong>e</strong></em> <s>f</s> <strong>g</strong></p>"),
        ("2 * 3 * 4 and snake_case_name and **", "<p>2 * 3 * 4 and snake_case_name and **</p>"),
        ("`a*b*` and ``c`d``", "<p><code>a*b*</code> and <code>c`d</code></p>"),
        (r"\*no\* \# \\", r"<p>*no* # \</p>"),
        (r"so \(a_1 + b_1\) and $$x*y*z$$", "<p>so [a_1 + b_1] and <span>[x*y*z]</span></p>"),
        (
            r"$a_1$, \[b\], $c$d, 5$ and $6 or `$e$`",
            "<p>[a_1], <span>[b]</span>, [c]d, 5$ and $6 or <code>$e$</code></p>",
        ),
        (
            "- a\n\n  \\[\n  b\n  = c\n  \\]\n\n$$d$$",
            "<ul>" + li("<p>a</p><div><span>[b\n  = c]</span></div>") + "</ul><div><span>[d]</span></div>",
        ),
        (
            r"$\unknown{x}$ and $\href{javascript:alert(1)}{x}$",
            r"<p><code>\unknown{x}</code> and [\href{javascript:alert(1)}{x}]</p>",
        ),
        (
            "> \\[\n> a\n> \\]\n\n$$b$$ c",
            "<blockquote><div><span>[a]</span></div></blockquote><p><span>[b]</span> c</p>",
        ),
        ("- a\n- b\n  1. c\n- e", f"<ul>{li('a')}<li>b<ol>{li('c')}</ol></li>{li('e')}</ul>"),
        (
            "3. a\n   ```py\n   x\n     y\n   ```\n4. b",
            '<ol start="3"><li>a' + listing("x\n  y") + f"</li>{li('b')}</ol>",
        ),
        ("- [x] a\n- [ ] b", f"<ul>{li('<input>a')}{li('<input>b')}</ul>"),
        ("> a\n> - b", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>"),
        ("```\n<b>&amp;\n", listing("&lt;b&gt;&amp;amp;")),
        ("~~~\n```\n~~~\n\n---", listing("```") + "<hr>"),
        ("a\n| b | c\\|d |\n|--|:-:|\n| `e\\|f` |", f"<p>a</p>{TABLE}"),
        ("[a](https://x.org/y_(z)) b", '<p><a href="https://x.org/y_(z)">a</a> b</p>'),
        ("See https://x.org/a_b.", '<p>See <a href="https://x.org/a_b">https://x.org/a_b</a>.</p>'),
        ("<https://y.org/> a", '<p><a href="https://y.org/">https://y.org/</a> a</p>'),
        ("[a][1] README.md\n\n[1]: https://x.org/", '<p><a href="https://x.org/">a</a> README.md</p>'),
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
    "```html\n<img src=x onerror=alert(1)><script>alert(1)</script>\n```",
    r"$\htmlStyle{position:fixed}{x}$ $\includegraphics{https://x.org/i.png}$ $\href{javascript:alert(1)}{x}$",
    r"$$\text{<img src=x onerror=alert(1)>}$$ $\url{javascript:alert(1)}$ $\htmlData{onclick=alert(1)}{x}$",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_model_cannot_make_elements(page: Browser, text: str) -> None:
    found = run(
        page,
        "markdown.update(given[0]); const all = [...root.querySelectorAll('*')];"
        "return [all.map((one) => one.localName), all.flatMap((one) => one.getAttributeNames()),"
        " all.filter((one) => one.getAttribute('style') && !one.closest('.katex')).length,"
        " [...root.querySelectorAll('a')].map((one) => [one.protocol, one.rel])]",
        text,
    )
    assert isinstance(found, list)
    names, attributes, styled, links = found
    assert not styled
    assert not set(names) & {"script", "img", "i", "b", "h1", "iframe", "style"}
    assert not [name for name in attributes if name.startswith("on")]
    assert all(protocol == "https:" and "noopener" in rel for protocol, rel in links)


def test_a_text_that_grows_ends_as_the_whole(page: Browser) -> None:
    """Whatever the pieces, the page shows in the end what it shows of the text at once."""
    text = (
        "# A\n\nb **c** `d`\n\n- e\n  - f\n\n    g\n\n```py\nx\n\ny\n```\n\n| h | i |\n|--|--|\n| j | k |\n\n> l\n\n"
        "$$\nm\n$$\n\n[n][1] $o$\n\n[1]: https://x.org/"
    )
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


CODE = [
    (f"```{language}\n", text) for language in ("cpp", "csharp", "markdown", "python", "xml") for text in ("a\n", "h")
]


@pytest.mark.parametrize(("start", "unit"), [("", unit) for unit in UNITS] + CODE)
def test_nothing_takes_long(page: Browser, start: str, unit: str) -> None:
    """A long answer that repeats itself costs a pause at most: 0.5 s on a quiet machine."""
    script = "const begun = performance.now(); markdown.update(given[0]); return performance.now() - begun"
    length = 9_500 if start else 100_000  # of code, what is shown in colours
    milliseconds = run(page, script, start + unit * (length // len(unit)))
    assert isinstance(milliseconds, int | float) and milliseconds < 20_000


@pytest.mark.parametrize(
    ("language", "text", "classes"),
    [
        ("python", "def f(x): return 'a'  # b", ["hljs-keyword", "hljs-string", "hljs-comment"]),
        ("c++", "int x = 1;", ["hljs-type", "hljs-number"]),
        ("unknown", "int x = 1;", []),
        ("c", "int " + "x" * 1000, []),
        ("c", "int x = 1;\n" * 1000, []),
    ],
)
def test_colours_of_code(page: Browser, language: str, text: str, classes: list[str]) -> None:
    script = (
        "markdown.update(`\\`\\`\\`${given[0]}\\n${given[1]}`); const code = root.querySelector('code');"
        "return [code.textContent, [...code.querySelectorAll('span')].map((one) => one.className)]"
    )
    found = run(page, script, language, text)
    assert isinstance(found, list) and found[0] == text.rstrip("\n")
    assert set(classes) <= set(found[1]) and bool(found[1]) == bool(classes)


def test_formulas_are_typeset(page: Browser) -> None:
    """Accents and tall brackets have widths that KaTeX gives by an attribute which the policy forbids."""
    source = (
        r"$\vec{x} + \overbrace{a + b}^n + \sqrt{\frac{1}{2}} + \left(\begin{matrix}1\\1\\1\\1\\1\end{matrix}\right)$"
    )
    script = (
        "document.body.append(root); markdown.update(given[0]); const html = root.querySelector('.katex-html');"
        "const heights = [...html.children].map((one) => one.offsetHeight);"
        "const found = [getComputedStyle(html).fontFamily, Math.max(...heights),"
        " [...html.querySelectorAll('svg')].map((one) => one.getBoundingClientRect().width)];"
        "root.remove(); return found"
    )
    found = run(page, script, source)
    assert isinstance(found, list)
    family, height, widths = found
    assert "KaTeX_Main" in family and height > 60
    assert len(widths) >= 3 and all(1 < width < 200 for width in widths)
