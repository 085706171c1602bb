#!/usr/bin/env python3
"""Finds circles of imports between the modules of a crate: `a` uses `b`, `b` uses `c`, `c` uses `a`.

What is compared are files. An inline module belongs to the file that it is in.

A file depends on another one if it names something that the other one declares:
- `use crate::a::X`, `use super::a::{X, Y as Z}`, `use a::X` for a child module `a`, within a function, too;
- a path in the code: `crate::a::x()`, `super::X`, `a::X` for a child module or an imported module `a`.
What counts is where an item is declared. If `a` re-exports `X` of `a::b`, then `use crate::a::X` depends on `a::b`, not on `a`.

These are no dependencies:
- a child module names its parent, or a parent what is inside of it: together they are one thing, which is told in several files. What several
  children share may be declared by their parent, and the parent may call them. Children that name each other are what is looked at;
- a re-export (`pub use child::X`), unless the file uses the name itself: it is a signpost;
- the import of a module (`use crate::a;`): what counts is what the file then names in it (`a::X`);
- anything of tests: items under `#[cfg(test)]`, files named `tests.rs` or `*_tests.rs`.

Usage: import-cycles.py [FOLDER]. Prints each circle with the lines that close it, and exits with 1 if there is one.
"""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*)
      | (?P<comment>/\*)
      | (?P<raw>\b[bc]?r(?P<hashes>\#*)"(?P<rawtext>.*?)"(?P=hashes))
      | (?P<string>\b[bc]?"(?:\\.|[^"\\])*"|"(?:\\.|[^"\\])*")
      | (?P<char>\bb?'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\])'|'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\])')
      | (?P<lifetime>'\w+)
      | (?P<word>(?:r\#)?[A-Za-z_]\w*)
      | (?P<number>\d\w*)
      | (?P<colons>::)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
TYPES = {"struct", "enum", "union", "trait", "type"}
VALUES = {"fn", "const", "static"}


@dataclass
class Token:
    kind: str
    text: str
    line: int


@dataclass
class Use:
    """One name that an import brings into a module."""

    path: list
    name: str
    is_public: bool
    line: int


@dataclass(eq=False)
class Module:
    file: Path
    parent: "Module | None"
    # Where the files of child modules are.
    folder: Path
    children: dict = field(default_factory=dict)
    # Types and traits, which may be followed by `::`, and everything else.
    types: set = field(default_factory=set)
    values: set = field(default_factory=set)
    uses: list = field(default_factory=list)
    imported: dict = field(default_factory=dict)
    globs: list = field(default_factory=list)
    # Paths of two or more names in the code, and how often each single name appears in it.
    paths: list = field(default_factory=list)
    names: set = field(default_factory=set)

    def root(self):
        return self.parent.root() if self.parent else self

    def is_inside(self, other):
        """Whether this module, or one that it is inside of, is in the file of the other one."""
        return self.file == other.file or (self.parent is not None and self.parent.is_inside(other))


def tokens(text):
    found, at, line = [], 0, 1
    while at < len(text):
        match = TOKEN.match(text, at)
        kind, end = match.lastgroup, match.end()
        # Block comments nest.
        if match.group("comment"):
            depth, end = 1, match.end()
            while depth and end < len(text):
                step = re.compile(r"/\*|\*/").search(text, end)
                end = step.end() if step else len(text)
                depth += 1 if step and step.group() == "/*" else -1
        elif not match.group("skip"):
            kind = next(name for name in ("raw", "string", "char", "lifetime", "word", "number", "colons", "other") if match.group(name))
            found.append(Token(kind, match.group().removeprefix("r#") if kind == "word" else match.group(), line))
        line += text.count("\n", at, end)
        at = end
    return found


def closing(all_tokens, at):
    """The index behind the bracket that closes the one at this index."""
    depth = 0
    while at < len(all_tokens):
        token = all_tokens[at]
        if token.kind == "other":
            depth += (token.text in "([{") - (token.text in ")]}")
            if depth == 0:
                return at + 1
        at += 1
    return at


def item_end(all_tokens, at):
    """The index behind the item, field or statement that begins at this index."""
    while at < len(all_tokens):
        text = all_tokens[at].text if all_tokens[at].kind == "other" else ""
        if text in (";", ","):
            return at + 1
        if text == "}":
            return at
        if text and text in "([{":
            at = closing(all_tokens, at)
            if text == "{":
                return at
        else:
            at += 1
    return at


def use_tree(all_tokens, at, prefix, is_public, into):
    """Reads a use tree; returns the index behind it."""
    path = list(prefix)
    while at < len(all_tokens):
        token = all_tokens[at]
        if token.kind == "word" and token.text != "as":
            path.append(token.text)
        elif token.text == "as":
            into.append(Use(path, all_tokens[at + 1].text, is_public, token.line))
            return at + 2
        elif token.text == "*":
            into.append(Use(path, "*", is_public, token.line))
            return at + 1
        elif token.text == "{":
            at += 1
            while all_tokens[at].text != "}":
                at = use_tree(all_tokens, at, path, is_public, into)
                at += all_tokens[at].text == ","
            return at + 1
        elif token.kind != "colons":
            break
        at += 1
    if len(path) > 1 and path[-1] == "self":
        path.pop()
    if path:
        into.append(Use(path, path[-1], is_public, all_tokens[at - 1].line))
    return at


def is_test(attribute):
    text = "".join(token.text for token in attribute)
    return re.match(r"cfg\((test\)|all\(test[,)])", text) is not None


class Reader:
    """Reads the modules of one crate, beginning with the root file."""

    def __init__(self):
        self.modules = []

    def file(self, path, parent, folder):
        module = Module(path, parent, folder)
        self.modules.append(module)
        found = tokens(path.read_text())
        self.body(module, found, 0, len(found))
        return module

    def child(self, module, name, attributes):
        """The file of `mod name;`, unless it holds tests."""
        path = next((one[-1].text.strip('"') for one in attributes if one and one[0].text == "path"), None)
        candidates = [module.file.parent / path] if path else [module.folder / f"{name}.rs", module.folder / name / "mod.rs"]
        found = next((one for one in candidates if one.is_file()), None)
        if found is None or found.name == "tests.rs" or found.name.endswith("_tests.rs"):
            return
        module.children[name] = self.file(found, module, found.parent if path else module.folder / name)

    def body(self, module, found, at, end):
        attributes = []
        while at < end:
            token = found[at]
            following = found[at + 1] if at + 1 < end else Token("other", "", 0)
            if token.text == "#" and following.text in ("[", "!"):
                begin = at + 1 + (following.text == "!")
                if begin < end and found[begin].text == "[":
                    behind = closing(found, begin)
                    attributes.append(found[begin + 1 : behind - 1])
                    self.attribute(module, attributes[-1])
                    at = behind
                    # An inner attribute is about what it is in, which is read already.
                    if is_test(attributes[-1]) and following.text == "[":
                        while found[at].text == "#":
                            at = closing(found, at + 1)
                        at, attributes = item_end(found, at), []
                    continue
            if token.kind == "word" and token.text == "mod" and following.kind == "word":
                if found[at + 2].text == ";":
                    self.child(module, following.text, attributes)
                    at, attributes = at + 3, []
                    continue
                if found[at + 2].text == "{":
                    inner = Module(module.file, module, module.folder / following.text)
                    self.modules.append(inner)
                    module.children[following.text] = inner
                    behind = closing(found, at + 2)
                    self.body(inner, found, at + 3, behind - 1)
                    at, attributes = behind, []
                    continue
            if token.kind == "word" and token.text == "use" and (following.kind in ("word", "colons") or following.text == "{"):
                is_public = at > 0 and found[at - 1].text in ("pub", ")")
                if following.kind == "colons":
                    at = item_end(found, at)
                else:
                    at = use_tree(found, at + 1, [], is_public, module.uses)
                attributes = []
                continue
            if token.kind == "word":
                if following.kind == "word" and token.text in TYPES:
                    module.types.add(following.text)
                if following.kind == "word" and token.text in VALUES:
                    module.values.add(following.text)
                if token.text == "macro_rules" and at + 2 < end:
                    module.values.add(found[at + 2].text)
                at = self.path(module, found, at, end)
            else:
                at += 1
            attributes = []

    @staticmethod
    def path(module, found, at, end):
        """Notes the path that begins here; returns the index behind it."""
        path, line, begin = [found[at].text], found[at].line, at
        at += 1
        while at + 1 < end and found[at].kind == "colons" and found[at + 1].kind == "word":
            path.append(found[at + 1].text)
            at += 2
        if begin == 0 or (found[begin - 1].kind != "colons" and found[begin - 1].text != "."):
            module.names.add(path[0])
            if len(path) > 1:
                module.paths.append((path, line))
        return at

    @staticmethod
    def attribute(module, inside):
        """Attributes name items, in text, too: `#[serde(with = "crate::text")]`."""
        for index, token in enumerate(inside):
            if token.kind == "string" and re.fullmatch(r'"\w+(::\w+)+"', token.text):
                module.paths.append((token.text.strip('"').split("::"), token.line))
            elif token.kind == "word":
                Reader.path(module, inside, index, len(inside))


def start(module, path):
    """Where a path begins, and what of it is left; nothing for other crates."""
    first, rest = path[0], path[1:]
    if first == "crate":
        return module.root(), rest
    if first == "self":
        return module, rest
    if first == "super":
        at = module.parent
        while at is not None and rest and rest[0] == "super":
            at, rest = at.parent, rest[1:]
        return (at, rest) if at is not None else None
    if first in module.children or first in module.imported:
        return module, path
    return None


def resolve(module, path, seen=()):
    """The module that declares what the path names, and whether it names a module; nothing for other crates."""
    begin = start(module, path)
    if begin is None:
        return None
    at, rest = begin
    while rest:
        name = rest[0]
        if name in at.children:
            at, rest = at.children[name], rest[1:]
            continue
        if name in at.types or (len(rest) == 1 and name in at.values):
            return at, False
        if name in at.imported and (at, name) not in seen:
            return resolve(at, at.imported[name] + rest[1:], (*seen, (at, name)))
        for glob in at.globs:
            if (at, "*", *glob) in seen:
                continue
            target = resolve(at, glob + rest, (*seen, (at, "*", *glob)))
            if target and (target[1] or name in target[0].types | target[0].values):
                return target
        return at, False
    return at, True


def dependencies(modules):
    """For each file the files that it depends on, each with the first line that says so."""
    for module in modules:
        module.imported = {use.name: use.path for use in module.uses if use.name not in ("*", "_")}
        module.globs = [use.path for use in module.uses if use.name == "*"]
    edges = {}
    for module in modules:
        named = list(module.paths)
        for use in module.uses:
            if not use.is_public or use.name in module.names:
                named.append((use.path, use.line))
        globs = {tuple(path) for path in module.globs}
        for path, line in named:
            target = resolve(module, path)
            # A module alone is no dependency, except that all of its names are taken.
            if target is None or (target[1] and tuple(path) not in globs):
                continue
            if not module.is_inside(target[0]) and not target[0].is_inside(module):
                lines = edges.setdefault(module.file, {})
                lines.setdefault(target[0].file, (line, "::".join(path)))
    return edges


def circles(edges):
    """The largest groups of files each of which depends on each other one (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(file):
        index[file] = low[file] = len(index)
        stack.append(file)
        for target in edges.get(file, {}):
            if target not in index:
                visit(target)
            if target in stack:
                low[file] = min(low[file], low[target])
        if low[file] == index[file]:
            group = [stack.pop()]
            while group[-1] != file:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for file in sorted(edges):
        if file not in index:
            visit(file)
    return found


def shortest(edges, group):
    """The shortest circle within a group: its files in order, the first one again at the end."""
    best = None
    for begin in group:
        ways = [[begin]]
        reached = {begin}
        while ways and (best is None or len(ways[0]) < len(best)):
            way = ways.pop(0)
            for target in sorted(edges.get(way[-1], {})):
                if target == begin:
                    best = [*way, begin] if best is None or len(way) + 1 < len(best) else best
                elif target in group and target not in reached:
                    reached.add(target)
                    ways.append([*way, target])
    return best


def roots(folder):
    """The root files of all crates: libraries, programs, tests, examples and benchmarks."""
    for manifest in sorted(folder.rglob("Cargo.toml")):
        package = manifest.parent
        if {"target", "node_modules"} & set(manifest.relative_to(folder).parts) or "[package]" not in manifest.read_text():
            continue
        found = {package / "src/lib.rs", package / "src/main.rs", package / "build.rs"}
        found |= {package / path for path in re.findall(r'^path = "([^"]+\.rs)"', manifest.read_text(), re.MULTILINE)}
        for place in ("src/bin", "tests", "examples", "benches"):
            found |= set((package / place).glob("*.rs")) | set((package / place).glob("*/main.rs"))
        yield from sorted(root for root in found if root.is_file())


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    sys.setrecursionlimit(10_000)
    count = 0
    for root in roots(folder):
        reader = Reader()
        # Only the roots of crates and `mod.rs` have their child modules beside them.
        reader.file(root, None, root.parent)
        edges = dependencies(reader.modules)
        for group in circles(edges):
            count += 1
            print(f"{count}. {len(group)} files of {root.relative_to(folder)} import each other:")
            for file in group:
                print(f"     {file.relative_to(folder)}")
            way = shortest(edges, set(group))
            print("   the shortest way round:")
            for file, target in zip(way, way[1:]):
                line, path = edges[file][target]
                print(f"     {file.relative_to(folder)}:{line} names {path}, of {target.relative_to(folder)}")
    if count:
        print(f"circles of imports: {count}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
