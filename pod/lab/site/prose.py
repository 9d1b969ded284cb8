"""Markdown, code and formulas as HTML, when the site is built: a reader's browser computes nothing of it."""

import re
from collections.abc import Callable
from functools import cache
from html import escape, unescape

from latex2mathml.converter import convert
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments import lex
from pygments.lexers import get_lexer_by_name
from pygments.token import Token
from pygments.util import ClassNotFound

from pod.lab.site.frame import slug

LANGUAGES = {"py": "python", "cu": "cuda", "cuh": "cuda", "h": "cpp", "cpp": "cpp", "md": "markdown", "sh": "bash",
             "ipython": "python"}  # fmt: skip
SHADES = {Token.Keyword: "k", Token.Operator.Word: "k", Token.String: "s", Token.Comment.Preproc: "n",
          Token.Comment: "c", Token.Number: "n", Token.Name.Function: "f", Token.Name.Class: "f",
          Token.Name.Decorator: "f", Token.Name.Builtin: "f"}  # fmt: skip

SPANS = {name: f'<i class="{name}">{{}}</i>' for name in SHADES.values()}


def highlighted(code: str, language: str) -> str:
    """Five shades, which site.css has for the light and for the dark."""
    try:
        lexer = get_lexer_by_name(LANGUAGES.get(language, language or "text"))
    except ClassNotFound:
        lexer = get_lexer_by_name("text")
    body = "".join(SPANS.get(shade(kind), "{}").format(escape(text, quote=False)) for kind, text in lex(code, lexer))
    return f'<pre class="code" tabindex="0"><code>{body.rstrip()}</code></pre>\n'


@cache
def shade(kind) -> str:
    return next((name for known, name in SHADES.items() if kind in known), "")


class Renderer(IPythonRenderer):
    """`link` says where a link leads on this page."""

    def __init__(self, link: Callable[[str], str]) -> None:
        super().__init__(escape=False, exclude_anchor_links=True)
        self.where = link

    def link(self, text: str, url: str, title: str | None = None) -> str:
        return f'<a href="{escape(self.where(url))}">{text}</a>'

    def image(self, text: str, url: str, title: str | None = None) -> str:
        return f'<img src="{escape(self.where(url))}" alt="{text}" loading="lazy">'

    def heading(self, text: str, level: int, **attrs) -> str:
        return f'<h{level} id="{slug(plain(text))}">{text}</h{level}>\n'

    def block_code(self, code: str, info: str | None = None) -> str:
        return highlighted(code.rstrip("\n"), (info or "").split(" ")[0])

    def table(self, text: str) -> str:
        return f'<div class="scroll" tabindex="0"><table>{text}</table></div>\n'

    def inline_math(self, body: str) -> str:
        return convert(body)

    def block_math(self, body: str) -> str:
        return f'<div class="formula scroll" tabindex="0">{convert(body, display="block")}</div>'


def markdown(text: str, link: Callable[[str], str] = str) -> str:
    return MarkdownWithMath(renderer=Renderer(link)).render(text)


def inline(text: str) -> str:
    """One paragraph, without being one."""
    return re.sub(r"^<p>|</p>\s*$", "", markdown(text))


def plain(html: str) -> str:
    """The words of a piece of HTML."""
    return unescape(re.sub(r"<[^>]+>", "", html))
