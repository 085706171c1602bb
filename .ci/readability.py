#!/usr/bin/env python3
"""Prints how the product code reads, as numbers.

usage: .ci/readability.py [--types] [FOLDER]

Product code is all Rust below FOLDER (`crates`) without tests, benches, examples and `crates/devtools`. The numbers are no gates: a
worse name for the sake of a number is a fault.

    code lines      lines with a token that is no comment
    tokens a line   tokens of the language, on the average; attributes count, comments do not
    one-word names  share of functions whose name has no underscore, trait implementations apart
    shared names    share of types (struct, enum, trait, union, alias) whose name another type of the tree has, too
    closures        `let name = |...|` per 1,000 code lines
    over 100        share of all lines, comments included, with more than 100 characters

`--types` lists the shared names with the crates that have them.
"""
import argparse
import collections
import pathlib
import re

LEFT_OUT = {"tests", "benches", "examples", "devtools", "target"}
TEST_FILES = {"tests.rs", "testing.rs", "fixtures.rs", "histories.rs", "hostile_histories.rs", "deletion_model.rs", "chains.rs"}

TOKEN = re.compile(
    r"""
      (?P<comment> //[^\n]* | /\*(?:[^*]|\*(?!/))*\*/ )
    | (?P<string>  b?c?r(?P<hashes>\#*)".*?"(?P=hashes) | [bc]?"(?:\\.|[^"\\])*" )
    | (?P<char>    b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.)|[^'\\])' )
    | (?P<lifetime> '[A-Za-z_]\w* )
    | (?P<number>  \d[\w]*(?:\.\d[\w]*)? )
    | (?P<word>    (?:r\#)?[A-Za-z_]\w* )
    | (?P<sign>    <<=|>>=|\.\.=|\.\.\.|::|->|=>|==|!=|<=|>=|&&|\|\||\+=|-=|\*=|/=|%=|\^=|&=|\|=|<<|\.\.|[^\s\w] )
    """,
    re.VERBOSE | re.DOTALL,
)


class Token:
    __slots__ = ("line", "text")

    def __init__(self, text, line):
        self.text, self.line = text, line


def tokens_of(text):
    """All tokens but comments."""
    tokens, line, at = [], 1, 0
    for found in TOKEN.finditer(text):
        line += text.count("\n", at, found.start())
        at = found.start()
        if found.lastgroup != "comment" and found.group("comment") is None:
            tokens.append(Token(found.group(), line))
    return tokens


def end_of_item(tokens, start):
    """The index after the item that begins at `start`: after its block, or its semicolon."""
    depth = 0
    for index in range(start, len(tokens)):
        text = tokens[index].text
        if text in "([{" and len(text) == 1:
            depth += 1
        elif text in ")]}" and len(text) == 1:
            depth -= 1
            if depth == 0 and text == "}":
                return index + 1
        elif text == ";" and depth == 0:
            return index + 1
    return len(tokens)


def end_of_attribute(tokens, start):
    depth = 0
    for index in range(start, len(tokens)):
        depth += {"[": 1, "]": -1}.get(tokens[index].text, 0)
        if depth == 0 and tokens[index].text == "]":
            return index + 1
    return len(tokens)


def without_tests(tokens):
    """The tokens of product code, and the lines that belong to tests."""
    kept, test_lines, index = [], set(), 0
    while index < len(tokens):
        is_attribute = tokens[index].text == "#" and index + 1 < len(tokens) and tokens[index + 1].text == "["
        if not is_attribute:
            kept.append(tokens[index])
            index += 1
            continue
        end = end_of_attribute(tokens, index + 1)
        words = [token.text for token in tokens[index:end]]
        is_test = words[2:] == ["cfg", "(", "test", ")", "]"] or "test" in words[2:3]
        if not is_test:
            kept.extend(tokens[index:end])
            index = end
            continue
        after = end
        while after + 1 < len(tokens) and tokens[after].text == "#" and tokens[after + 1].text == "[":
            after = end_of_attribute(tokens, after + 1)
        after = end_of_item(tokens, after)
        test_lines.update(range(tokens[index].line, tokens[after - 1].line + 1))
        index = after
    return kept, test_lines


def trait_implementations(tokens):
    """Ranges of token indexes within `impl Trait for Type { ... }`: their functions' names are the trait's."""
    ranges = []
    for index, token in enumerate(tokens):
        begins = index == 0 or tokens[index - 1].text in "{};]"
        if token.text != "impl" or not begins:
            continue
        header = index
        while header < len(tokens) and tokens[header].text not in ("{", ";"):
            header += 1
        words = [one.text for one in tokens[index:header]]
        is_of_trait = any(word == "for" and words[at + 1 : at + 2] != ["<"] for at, word in enumerate(words))
        if is_of_trait:
            ranges.append((header, end_of_item(tokens, header)))
    return ranges


class Count:
    def __init__(self):
        self.code_lines = self.tokens = self.functions = self.one_word = self.closures = 0
        self.lines = self.long_lines = 0
        self.types = collections.defaultdict(list)

    def add(self, crate, text):
        tokens, test_lines = without_tests(tokens_of(text))
        self.code_lines += len({token.line for token in tokens})
        self.tokens += len(tokens)
        for number, line in enumerate(text.splitlines(), 1):
            if number not in test_lines:
                self.lines += 1
                self.long_lines += len(line) > 100
        of_traits = trait_implementations(tokens)
        for index, token in enumerate(tokens[:-1]):
            following = tokens[index + 1].text
            is_name = re.match(r"[A-Za-z_]", following)
            if token.text == "fn" and is_name and not any(begin < index < end for begin, end in of_traits):
                self.functions += 1
                self.one_word += "_" not in following.strip("_")
            elif token.text in ("struct", "enum", "trait", "union") and is_name:
                self.types[following].append(crate)
            elif token.text == "type" and is_name and not any(begin < index < end for begin, end in of_traits):
                # The associated type of a trait is no alias: it has no value.
                words = [one.text for one in tokens[index : end_of_item(tokens, index)]]
                if "=" in words:
                    self.types[following].append(crate)
            elif token.text == "let" and is_name:
                after = index + 3 if following == "mut" else index + 2
                words = [one.text for one in tokens[after : after + 3]]
                is_closure = words[:1] == ["="] and (words[1] in ("|", "||") or words[1:3] in (["move", "|"], ["move", "||"]))
                self.closures += is_closure

    def shared(self):
        return {name: crates for name, crates in self.types.items() if len(crates) > 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", action="store_true", help="list the names that types share")
    parser.add_argument("folder", nargs="?", default="crates", type=pathlib.Path)
    options = parser.parse_args()
    count = Count()
    for path in sorted(options.folder.rglob("*.rs")):
        parts = path.relative_to(options.folder).parts
        if LEFT_OUT.intersection(parts[:-1]) or parts[-1] in TEST_FILES:
            continue
        crate = "/".join(parts[: parts.index("src")]) if "src" in parts else parts[0]
        count.add(crate, path.read_text())
    shared = count.shared()
    types = sum(map(len, count.types.values()))
    shared_types = sum(map(len, shared.values()))
    within = sum(len(set(crates)) < len(crates) for crates in shared.values())
    percent = lambda part, whole: f"{100 * part / max(whole, 1):.1f}%"
    rows = [
        ("code lines", f"{count.code_lines:,}"),
        ("tokens", f"{count.tokens:,}"),
        ("tokens a line", f"{count.tokens / max(count.code_lines, 1):.1f}"),
        ("functions with a one-word name", percent(count.one_word, count.functions)),
        ("types that share their name with another", percent(shared_types, types)),
        ("names that types of one crate share", str(within)),
        ("named closures per 1,000 lines", f"{1000 * count.closures / max(count.code_lines, 1):.1f}"),
        ("lines over 100", percent(count.long_lines, count.lines)),
    ]
    for name, value in rows:
        print(f"{name:42} {value:>9}")
    if options.types:
        for name, crates in sorted(shared.items(), key=lambda item: (-len(item[1]), item[0])):
            print(f"{name:30} {', '.join(crates)}")


if __name__ == "__main__":
    main()
