//! Every page can be finished, and every link in it leads somewhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;

use super::root;

/// Maximum number of words of a page that people read from beginning to end: eight minutes.
const MAX_WORDS: usize = 1_800;
/// The same of the README.
const MAX_README_WORDS: usize = 900;

/// Folders of pages to look things up in, and of decisions.
const UNBOUNDED: [&str; 2] = ["docs/reference/", "docs/decisions/"];

/// All Markdown pages of the repository, by their path from its root.
fn pages() -> BTreeMap<PathBuf, String> {
    let root = root().canonicalize().unwrap();
    let mut folders = vec![root.clone()];
    let mut pages = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && name != ".git" {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let text = fs::read_to_string(&path).unwrap();
                pages.insert(path.strip_prefix(&root).unwrap().to_owned(), text);
            }
        }
    }
    pages
}

/// The lines outside of blocks of code.
fn prose(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push(line);
        }
    }
    lines
}

/// The anchors that GitHub and mdBook give the headings of a page, and those that it sets itself.
fn anchors(text: &str) -> BTreeSet<String> {
    let link = Regex::new(r"\[([^\]]*)\]\([^)]*\)").unwrap();
    let own = Regex::new(r#"<a id="([^"]+)">"#).unwrap();
    let mut anchors: BTreeSet<String> = own
        .captures_iter(text)
        .map(|found| found[1].to_owned())
        .collect();
    for line in prose(text) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let heading = link.replace_all(heading.trim(), "$1").to_lowercase();
        let slug: String = heading
            .chars()
            .filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter))
            .map(|letter| if letter == ' ' { '-' } else { letter })
            .collect();
        let mut anchor = slug.clone();
        let mut number = 0;
        while !anchors.insert(anchor.clone()) {
            number += 1;
            anchor = format!("{slug}-{number}");
        }
    }
    anchors
}

/// The targets of all links of a page, those in code apart.
fn links(text: &str) -> Vec<String> {
    let code = Regex::new("`[^`]*`").unwrap();
    let link = Regex::new(r"\]\(([^()\s]+)\)").unwrap();
    let prose = prose(text).join("\n");
    let prose = code.replace_all(&prose, "");
    link.captures_iter(&prose)
        .map(|found| found[1].to_owned())
        .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        .collect()
}

/// The path from the repository's root of a relative link.
fn resolve(page: &Path, target: &str) -> PathBuf {
    let mut path = page.parent().unwrap().to_owned();
    for part in Path::new(target).components() {
        match part {
            std::path::Component::ParentDir => drop(path.pop()),
            std::path::Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let mut broken = Vec::new();
    for (page, text) in &pages {
        for link in links(text) {
            let (target, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let path = if target.is_empty() {
                page.clone()
            } else {
                resolve(page, target)
            };
            let is_known = match pages.get(&path) {
                Some(text) => anchor.is_empty() || anchors(text).contains(anchor),
                None => root().join(&path).exists(),
            };
            if !is_known {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(
        broken.is_empty(),
        "links to nothing:\n{}",
        broken.join("\n")
    );
}

#[test]
fn a_person_finishes_every_page() {
    let mut too_long = Vec::new();
    for (page, text) in pages() {
        let page = page.to_string_lossy().into_owned();
        let is_unbounded = UNBOUNDED.iter().any(|folder| page.starts_with(folder));
        let limit = if page == "README.md" {
            MAX_README_WORDS
        } else {
            MAX_WORDS
        };
        let words = text.split_whitespace().count();
        if words > limit && !is_unbounded {
            too_long.push(format!("{page}: {words} words, {limit} may be"));
        }
    }
    assert!(too_long.is_empty(), "{}", too_long.join("\n"));
}

#[test]
fn headings_have_githubs_anchors() {
    let page =
        "# The `--set` key [of x](y.md)\n## Why, and how?\n## Why, and how?\n```\n# code\n```";
    let expected = ["the---set-key-of-x", "why-and-how", "why-and-how-1"];
    assert_eq!(anchors(page), expected.map(str::to_owned).into());
}
