#!/usr/bin/env python3
"""Checks the licences and the sources of all crates that the workspace needs, tests and other platforms included.

- A licence is accepted if the program may be given away under Apache-2.0 with it (ACCEPTED). Of alternatives (`A OR B`) one is enough, of
  several at once (`A AND B`) all count. WEAK licences ask for more, and name the crates that are checked by hand: unchanged, their source
  linked.
- A source is accepted if it is the workspace, or the one registry of Cargo.lock with a checksum: no git, no second registry.

Advisories are not checked: their database is a repository, which is not reached from everywhere. Use `cargo audit` where it is.

Usage: supply-chain.py. Prints what is not accepted, and exits with 1 if there is something.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ACCEPTED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}
WEAK = {"MPL-2.0": {"gotatun"}}

TOKEN = re.compile(r"\(|\)|\bOR\b|\bAND\b|/|[\w.+-]+(?: WITH [\w.+-]+)?")


def is_accepted(expression: str, crate: str) -> bool:
    tokens = TOKEN.findall(expression)

    def either() -> bool:
        found = both()
        while tokens and tokens[0] in ("OR", "/"):
            tokens.pop(0)
            other = both()
            found = found or other
        return found

    def both() -> bool:
        found = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            other = one()
            found = found and other
        return found

    def one() -> bool:
        token = tokens.pop(0)
        if token == "(":
            found = either()
            tokens.pop(0)
            return found
        return token in ACCEPTED or crate in WEAK.get(token, ())

    return bool(tokens) and either() and not tokens


def problems(packages: list[dict], locked: list[dict]) -> list[str]:
    found = []
    for package in packages:
        name = f"{package['name']} {package['version']}"
        if not is_accepted(package["license"] or "", package["name"]):
            found.append(f"{name}: its licence is {package['license'] or 'not named'}")
    sources = {package["source"] for package in locked if "source" in package}
    if len(sources) > 1:
        found.append(f"crates come from more than one place: {', '.join(sorted(sources))}")
    for package in locked:
        if "source" in package and not (package["source"].startswith("registry+") and package.get("checksum")):
            found.append(f"{package['name']} {package['version']}: it comes without a checksum from {package['source']}")
    return found


def check_itself() -> None:
    for expression, expected in [
        ("MIT OR Apache-2.0", True),
        ("GPL-3.0-only", False),
        ("MIT/GPL-3.0", True),
        ("MIT AND GPL-3.0", False),
        ("(MIT OR GPL-3.0) AND Unicode-3.0", True),
        ("(MIT AND GPL-3.0) OR LGPL-2.1", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("MPL-2.0", False),
        ("", False),
    ]:
        assert is_accepted(expression, "x") == expected, expression
    assert is_accepted("MPL-2.0", "gotatun")
    crate = {"name": "x", "version": "1", "license": "MIT", "source": "registry+a", "checksum": "c"}
    assert not problems([crate], [crate])
    assert problems([{**crate, "license": None}], [])
    assert problems([], [{**crate, "source": "git+b"}])
    assert problems([], [crate, {**crate, "source": "registry+b"}])


check_itself()
metadata = subprocess.run(
    ["cargo", "metadata", "--locked", "--format-version", "1"], stdout=subprocess.PIPE, check=True, text=True
).stdout
lock = tomllib.loads((Path(__file__).parent.parent / "Cargo.lock").read_text())
found = problems(json.loads(metadata)["packages"], lock["package"])
print("\n".join(found))
print("advisories are not checked here: use cargo audit where it reaches its database")
sys.exit(1 if found else 0)
