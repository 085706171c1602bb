#!/usr/bin/env python3
"""Builds the documentation as a site, and checks every link in it.

    .ci/docs-site.py [FOLDER]       default: target/docs-site; begin with FOLDER/index.html

mdBook makes the pages. It is installed into the folder of caches when it is not there yet. The table of contents comes from
the folders and the first heading of each page, so a new page is in the site without another line.
"""
import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

MDBOOK = "0.5.4"
ROOT = pathlib.Path(__file__).resolve().parent.parent

# The parts of the site: title, folder, and the pages that come first.
PARTS = [
    ("Begin", None, ["docs/README.md", "docs/explanation/concepts.md"]),
    ("Tutorials", "docs/tutorials", ["docs/tutorials/first-peering.md"]),
    ("How to", "docs/how-to", []),
    ("Reference", "docs/reference", ["docs/reference/glossary.md"]),
    ("Explanation", "docs/explanation", []),
    ("The project", None, ["docs/ARCHITECTURE.md", "docs/PERFORMANCE.md", "docs/SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md",
                           "CODE_OF_CONDUCT.md"]),
    ("Decisions", "docs/decisions", ["docs/decisions/README.md"]),
    ("Files for developers", None, []),
]


def run(*command, **options):
    return subprocess.run(command, check=True, **options)


def mdbook():
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "liqo-playground"
    folder = cache / f"mdbook-{MDBOOK}"
    if not (folder / "bin/mdbook").exists():
        environment = {**os.environ, "CARGO_TARGET_DIR": str(folder / "build"), "CARGO_PROFILE_RELEASE_OPT_LEVEL": "0"}
        run("cargo", "install", "mdbook", "--version", MDBOOK, "--locked", "--quiet", "--no-default-features", "--features", "search",
            "--root", folder, env=environment)
        shutil.rmtree(folder / "build")
    return folder / "bin/mdbook"


def tracked(*patterns):
    listed = run("git", "ls-files", *patterns, cwd=ROOT, capture_output=True, text=True).stdout
    return listed.splitlines()


def title(page):
    for line in (ROOT / page).read_text().splitlines():
        if line.startswith("# "):
            return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line[2:]).strip()
    return pathlib.Path(page).stem


def summary(pages):
    left = [page for page in pages if page not in ("README.md",) and not page.startswith(".github/")]
    lines = ["# Summary", "", f"[{title('README.md')}](README.md)"]
    for name, folder, first in PARTS:
        inside = sorted((page for page in left if folder and page.startswith(folder + "/") and page not in first), key=title)
        if name == "Files for developers":
            inside = sorted(left)
        chosen = [page for page in first if page in left] + inside
        left = [page for page in left if page not in chosen]
        if chosen:
            lines += ["", f"# {name}", ""] + [f"- [{title(page)}]({page})" for page in chosen]
    return "\n".join(lines) + "\n"


class Links(html.parser.HTMLParser):
    """The links of a page, and the places in it to which others may lead."""

    def __init__(self, text):
        super().__init__()
        self.links, self.places = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.places.update(value for key, value in attributes.items() if key in ("id", "name") and value)
        link = attributes.get("href") if tag == "a" else attributes.get("src") if tag == "img" else None
        if link and not urllib.parse.urlsplit(link).scheme:
            self.links.append(link)


def broken_links(site):
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html") if path.name not in ("print.html", "404.html", "toc.html")}
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                yield path, link
            elif parts.fragment and target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].places:
                yield path, link


def copy_page(page, folder):
    """Copies a page and the files that it links. A link to a folder becomes its text."""

    def copied(found):
        path = os.path.normpath(os.path.join(os.path.dirname(page), found[2]))
        if (ROOT / path).is_dir():
            return found[1]
        if (ROOT / path).is_file() and not path.endswith(".md"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, folder / path)
        return found[0]

    text = re.sub(r"\[([^\[\]]*)\]\(([^()\s#]+)(?:#[^()\s]*)?\)", copied, (ROOT / page).read_text())
    (folder / page).parent.mkdir(parents=True, exist_ok=True)
    (folder / page).write_text(text)


def main():
    site = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/docs-site").resolve()
    book = site.parent / (site.name + ".source")
    if site.exists() and any(site.iterdir()) and not (site / ".docs-site").exists():
        sys.exit(f"{site} is not empty, and no earlier run made it")
    for folder in (site, book):
        shutil.rmtree(folder, ignore_errors=True)
    pages = tracked("*.md")
    for page in pages:
        copy_page(page, book / "src")
    (book / "src/SUMMARY.md").write_text(summary(pages))
    (book / "book.toml").write_text(
        '[book]\ntitle = "Liqo"\nlanguage = "en"\n[build]\nuse-default-preprocessors = false\n[output.html]\nno-section-label = true\n[output.html.fold]\nenable = true\nlevel = 0\n'
    )
    run(mdbook(), "build", book, "--dest-dir", site, stdout=subprocess.DEVNULL)
    shutil.rmtree(book)
    (site / ".docs-site").touch()
    broken = sorted({f"{path.relative_to(site)}: {link}" for path, link in broken_links(site)})
    print("\n".join(broken), file=sys.stderr)
    if broken:
        sys.exit(f"{len(broken)} links lead nowhere")
    print(f"{site}/index.html: {len(pages)} pages")


main()
