#!/usr/bin/env python3
"""Fails if a crate of the workspace names a dependency that it does not use, or a rust-version that is too low for one that it does.

A dependency is used if its name in Rust appears as a word in the sources that may use it: those below `src` for one of its programs and
libraries, all for a dev-dependency, and `build.rs` for a build-dependency.
"""
import json
import pathlib
import re
import subprocess
import sys


# Named for its features: it chooses the version of Kubernetes for `kube`.
FOR_FEATURES = {("liqo-resource-plugin", "k8s-openapi")}


def metadata():
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def version(text):
    parts = [int(part) for part in (text or "0").split(".")]
    return parts + [0] * (3 - len(parts))


def sources(package):
    """The text of all files of a package, by kind of dependency."""
    folder = pathlib.Path(package["manifest_path"]).parent
    texts = {None: "", "dev": "", "build": ""}
    roots = {pathlib.Path(target["src_path"]).parent for target in package["targets"]}
    files = {file for root in roots | {folder / "src", folder / "tests", folder / "benches"} for file in root.rglob("*.rs")}
    others = {folder / name for name in ("target",)}
    for file in files:
        if any(other in file.parents for other in others):
            continue
        text = re.sub(r"^\s*//.*$", "", file.read_text(), flags=re.M)
        texts["dev"] += text
        if file.name == "build.rs":
            texts["build"] += text
        else:
            texts[None] += text
    return texts


def unused(package):
    texts = sources(package)
    for dependency in package["dependencies"]:
        name = (dependency["rename"] or dependency["name"]).replace("-", "_")
        is_for_features = (package["name"], dependency["name"]) in FOR_FEATURES
        if not is_for_features and not re.search(rf"\b{name}\b", texts[dependency["kind"]]):
            kind = f"{dependency['kind']}-dependency" if dependency["kind"] else "dependency"
            yield f"{package['name']}: the {kind} {dependency['name']} is not used"


def too_old(package, packages, needs):
    """The dependencies, also of dependencies, that want a newer Rust than the package says."""
    seen, open_ids = set(), [package["id"]]
    while open_ids:
        for needed in needs[open_ids.pop()]:
            if needed not in seen:
                seen.add(needed)
                open_ids.append(needed)
    own = version(package["rust_version"])
    for found in sorted((packages[one] for one in seen), key=lambda one: one["name"]):
        if version(found["rust_version"]) > own:
            yield f"{package['name']}: rust-version {package['rust_version']}, but {found['name']} needs {found['rust_version']}"


def main():
    found = metadata()
    packages = {package["id"]: package for package in found["packages"]}
    needs = {
        node["id"]: [one["pkg"] for one in node["deps"] if any(kind["kind"] != "dev" for kind in one["dep_kinds"])]
        for node in found["resolve"]["nodes"]
    }
    faults = []
    for member in found["workspace_members"]:
        faults += [*unused(packages[member]), *too_old(packages[member], packages, needs)]
    print("\n".join(faults) or f"{len(found['workspace_members'])} crates use all that they name")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
