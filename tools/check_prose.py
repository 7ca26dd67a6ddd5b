"""Checks the words and the sentences of the documents and docstrings.

`make lint`. A word is in the American dictionary or in tools/words.txt. A
sentence has at most 35 words and starts with its subject. Code is no prose.
"""

import ast
import dataclasses
import functools
import pathlib
import re
import sys
from collections.abc import Iterator
from collections.abc import Set

from markdown_it import MarkdownIt
from markdown_it.token import Token
from spylls.hunspell import Dictionary

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORDS = pathlib.Path("tools/words.txt")
# Pages whose tables a program writes, with names of code in their cells.
GENERATED = ("results.md", "method.md", "paper.md")
CELLS = ("th_open", "td_open")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md")
LONGEST = 35
CODE = "``"  # what a passage has in place of code: one word
SENTENCE_END = re.compile(
    r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!et al\.)[)\"]*\s+"
)
NO_SUBJECT = (
    r"Of|What|Those|Whether|Which|There (?:is|are|was|were)"
    r"|It (?:is|was) (?:\S+ )?that"
)
# How no sentence opens, by kind of passage; others are no sentences.
OPENINGS = {
    "paragraph_open": re.compile(rf"(?:{NO_SUBJECT})\b"),
    "docstring": re.compile(rf"(?:{NO_SUBJECT}|Where)\b"),
}
MARKDOWN = MarkdownIt("commonmark").enable("table")
# Of docstrings; a section without items has text.
SECTION = re.compile(
    r"(Args|Attributes|Examples|Raises|Returns|Yields|References):"
)
ITEM = re.compile(r"    (\**\w+): ")

Problem = tuple[int, str]


@dataclasses.dataclass(frozen=True)
class Passage:
    """A paragraph, a heading, a cell of a table or the like.

    Args:
        line: The line of its first character, from 1.
        kind: The token of Markdown that opens it, as `"paragraph_open"`; of
            the first one of a docstring `"docstring"`.
        text: Its prose, with `CODE` in place of code.
    """

    line: int
    kind: str
    text: str

    def line_of(self, position: int) -> int:
        """The line of a character."""
        return self.line + self.text.count("\n", 0, position)

    def sentences(self) -> Iterator[tuple[int, str]]:
        """Each sentence, behind its line."""
        start = 0
        for end in [*SENTENCE_END.finditer(self.text), None]:
            stop = end.end() if end else len(self.text)
            yield self.line_of(start), self.text[start:stop].strip()
            start = stop


def passages(markdown: str) -> Iterator[Passage]:
    """The passages of a text in Markdown."""
    line, kind = 1, ""
    for token in MARKDOWN.parse(markdown):
        line = token.map[0] + 1 if token.map else line
        if token.type != "inline":
            kind = token.type
        # mkdocstrings' own lines are no prose.
        elif not token.content.startswith(":::"):
            yield Passage(line, kind, _prose(token))


def _prose(token: Token) -> str:
    """A token's text without code and targets of links."""
    if token.children is not None:
        return "".join(map(_prose, token.children))
    if token.type in ("softbreak", "hardbreak"):
        return "\n"
    kinds = {"code_inline": CODE, "text": token.content}
    return kinds.get(token.type, "")


def docstrings(source: str) -> Iterator[Passage]:
    """The passages of all docstrings of a module."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        text = ast.get_docstring(node)
        for found in passages(as_markdown(text or "")):
            line = found.line + node.body[0].lineno - 1
            kind = "docstring" if found.line == 1 else found.kind
            yield Passage(line, kind, found.text)


def as_markdown(docstring: str) -> str:
    """A docstring in Google's style, as Markdown of as many lines."""
    section, lines = "", []
    for line in docstring.splitlines():
        found = SECTION.fullmatch(line)
        if found or line[:1].strip():
            section = found[1] if found else ""
        if section == "Examples" or found:
            line = ""
        elif section:
            line = ITEM.sub(r"- `\1`: ", line).removeprefix("    ")
        lines.append(line)
    return "\n".join(lines)


@functools.cache
def is_american(word: str) -> bool:
    """Returns whether the dictionary has a word."""
    return _dictionary().lookup(word)


@functools.cache
def _dictionary() -> Dictionary:
    return Dictionary.from_files("en_US")


def word_problems(passage: Passage, added: Set[str]) -> Iterator[Problem]:
    """The unknown words of a passage.

    Args:
        passage: The passage.
        added: Words beside the dictionary's. Those in small letters may start
            with a capital, others are as they are written.
    """
    for found in re.finditer(r"\S+", passage.text):
        for word in words_of(found[0]):
            known = {word, word[0].lower() + word[1:]} & added
            if not known and not is_american(word):
                line = passage.line_of(found.start())
                yield (
                    line,
                    f'unknown word "{word}": mend it or add it to {WORDS}',
                )


def words_of(token: str) -> list[str]:
    """The words in what stands between two spaces; none in a formula."""
    parts = re.split(r"[-/–—]", token.strip(".,;:!?()[]\"'*…"))
    parts = [part.removesuffix("'s").strip("'()") for part in parts]
    plain = all(re.fullmatch(r"[^\W\d_]+('[a-z]+)?", part) for part in parts)
    return [part for part in parts if len(part) > 1] if plain else []


def sentence_problems(passage: Passage) -> Iterator[Problem]:
    """The sentences of a passage that are long or open without a subject."""
    for line, sentence in passage.sentences():
        tokens = sentence.split()
        count = sum(bool(re.search(r"[^\W\d]|`", token)) for token in tokens)
        if count > LONGEST:
            yield line, f"a sentence of {count} words: at most {LONGEST}"
        forbidden = OPENINGS.get(passage.kind)
        opening = forbidden and forbidden.match(sentence)
        if opening and not sentence.endswith("?"):
            yield line, f'opens with "{opening[0]}": start with the subject'


def texts(root: pathlib.Path) -> Iterator[tuple[pathlib.Path, Passage]]:
    """Every passage below a folder, behind its file."""
    for page in sorted(path for one in PAGES for path in root.glob(one)):
        for passage in passages(page.read_text()):
            if page.name not in GENERATED or passage.kind not in CELLS:
                yield page, passage
    for module in sorted((root / "keras_lanton").rglob("*.py")):
        for passage in docstrings(module.read_text()):
            yield module, passage


def problems(root: pathlib.Path) -> Iterator[str]:
    """What is wrong below a folder: file, line, and what is wanted."""
    added = set((root / WORDS).read_text().split())
    for path, passage in texts(root):
        found = (*word_problems(passage, added), *sentence_problems(passage))
        for line, message in found:
            yield f"{path.relative_to(root)}:{line}: {message}"


def main() -> None:
    """The command line."""
    found = list(problems(ROOT))
    if found:
        sys.exit("\n".join([*found, f"{len(found)} to mend"]))


if __name__ == "__main__":
    main()
