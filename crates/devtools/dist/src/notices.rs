//! The licences of third parties in one text: each crate with its licence expression and its
//! licence files. A text that several crates have is printed once, and has a number.
//!
//! The Mozilla Public License asks for more: whoever gets a program must learn where the source of
//! its crates is. Those crates have a section of their own.

use std::collections::BTreeMap;

use crate::crate_graph::ShippedCrate;

/// A licence file in the source folder of a crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LicenceFile {
    pub name: String,
    pub text: String,
}

/// A crate with its licence files.
#[derive(Clone, Debug)]
pub struct LicensedCrate {
    pub shipped: ShippedCrate,
    pub files: Vec<LicenceFile>,
}

/// The notices for a version of Liqo, from the crates of third parties in their order. `toolchain`
/// is the version of the compiler, whose standard library is in every program.
pub fn render_notices(version: &str, toolchain: &str, crates: &[LicensedCrate]) -> String {
    let mut texts = NumberedTexts::default();
    let mut lines = vec![
        format!("Software of third parties in Liqo {version}"),
        String::new(),
        "Liqo itself is licensed under Apache-2.0: see LICENSE. Its programs are built from the"
            .to_owned(),
        format!(
            "{} crates of others that are listed here with their licences. Texts of licences have",
            crates.len()
        ),
        "numbers and follow at the end. The programs also contain the standard library of Rust"
            .to_owned(),
        format!("({toolchain}), licensed under MIT OR Apache-2.0."),
        String::new(),
        "== Crates ==".to_owned(),
        String::new(),
    ];
    for one in crates {
        lines.extend(crate_entry(one, &mut texts));
    }
    lines.extend(mozilla_section(crates));
    lines.push("== Texts ==".to_owned());
    for (number, text) in texts.sorted_texts() {
        lines.push(format!("\n---- Text {number} ----\n\n{text}"));
    }
    lines.join("\n") + "\n"
}

fn crate_entry(one: &LicensedCrate, texts: &mut NumberedTexts) -> Vec<String> {
    let expression = one
        .shipped
        .licence_expression()
        .unwrap_or_else(|| "see its licence file".to_owned());
    let mut lines = vec![format!("{}: {expression}", one.shipped.title())];
    for file in &one.files {
        let number = texts.number_of(&file.text);
        lines.push(format!("    {}: text {number}", file.name));
    }
    if one.files.is_empty() {
        let package = &one.shipped.package;
        lines.push("    Its package has no licence file.".to_owned());
        if !package.authors.is_empty() {
            lines.push(format!("    Authors: {}", package.authors.join(", ")));
        }
        lines.extend(labelled_line("Source", package.repository.as_deref()));
    }
    lines.push(String::new());
    lines
}

/// Where the source of crates under the Mozilla Public License is; empty without such crates.
fn mozilla_section(crates: &[LicensedCrate]) -> Vec<String> {
    let mut lines = Vec::new();
    for one in crates {
        let expression = one.shipped.licence_expression().unwrap_or_default();
        if !expression.contains("MPL-") {
            continue;
        }
        let (shipped, package) = (&one.shipped, &one.shipped.package);
        lines.push(format!("{} ({expression}), unchanged", shipped.title()));
        lines.extend(labelled_line("Repository", package.repository.as_deref()));
        lines.extend(labelled_line("Package", package.source.as_deref()));
        lines.extend(labelled_line("SHA-256", shipped.checksum.as_deref()));
        lines.push(String::new());
    }
    if !lines.is_empty() {
        let title = "== Source of crates under the Mozilla Public License ==";
        lines.splice(0..0, [title.to_owned(), String::new()]);
    }
    lines
}

fn labelled_line(label: &str, text: Option<&str>) -> Option<String> {
    Some(format!("    {label}: {}", text?))
}

/// Texts in the order in which they were met first.
#[derive(Default)]
struct NumberedTexts {
    numbers: BTreeMap<String, usize>,
}

impl NumberedTexts {
    /// Texts that differ only in ends of lines and in space at the ends have one number.
    fn number_of(&mut self, text: &str) -> usize {
        let lines: Vec<&str> = text.trim().lines().map(str::trim_end).collect();
        let next = self.numbers.len() + 1;
        *self.numbers.entry(lines.join("\n")).or_insert(next)
    }

    fn sorted_texts(&self) -> BTreeMap<usize, &str> {
        self.numbers
            .iter()
            .map(|(text, number)| (*number, text.as_str()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crate_graph::fixtures::small_crates;

    fn licensed(name: &str, texts: &[&str]) -> LicensedCrate {
        let shipped = small_crates()
            .into_iter()
            .find(|one| one.package.name == name)
            .unwrap();
        let file = |text: &&str| LicenceFile {
            name: "LICENSE".to_owned(),
            text: (*text).to_owned(),
        };
        LicensedCrate {
            shipped,
            files: texts.iter().map(file).collect(),
        }
    }

    #[test]
    fn a_text_of_several_crates_is_printed_once() {
        let crates = [
            licensed("derive", &["Permission is granted\r\n"]),
            licensed("parser", &["\nPermission is granted", "Other"]),
        ];
        let notices = render_notices("0.1.0", "rustc 1", &crates);
        assert_eq!(notices.matches("Permission is granted").count(), 1);
        assert!(notices.contains("derive 1.0.0: MIT OR Apache-2.0\n    LICENSE: text 1\n"));
        assert!(notices.contains("parser 1.0.0: MIT\n    LICENSE: text 1\n    LICENSE: text 2\n"));
        assert!(notices.contains("---- Text 2 ----\n\nOther\n"));
        assert!(!notices.contains("Mozilla"));
    }

    #[test]
    fn a_crate_without_a_licence_file_names_its_authors_and_its_source() {
        let notices = render_notices("0.1.0", "rustc 1", &[licensed("parser", &[])]);
        assert!(notices.contains(
            "parser 1.0.0: MIT\n    Its package has no licence file.\n    \
             Authors: Author of parser\n    Source: https://example.org/parser\n"
        ));
    }

    #[test]
    fn the_source_of_crates_under_the_mozilla_licence_is_named() {
        let notices = render_notices("0.1.0", "rustc 1", &[licensed("tunnel", &["MPL"])]);
        assert!(notices.contains(
            "tunnel 1.0.0 (MPL-2.0), unchanged\n    Repository: https://example.org/tunnel\n    \
             Package: registry\n    SHA-256: abc\n"
        ));
    }
}
