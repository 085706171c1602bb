//! The notes of a release: the section of its version in the changelog.

/// The section with the heading `## VERSION`, which may go on with a date, else `## Unreleased`.
/// Nothing if the changelog has neither.
pub fn notes_of_version(changelog: &str, version: &str) -> Option<String> {
    let section = section_with_title(changelog, version)
        .or_else(|| section_with_title(changelog, "Unreleased"))?;
    Some(format!("# Liqo {version}\n\n{section}\n"))
}

/// The lines below a heading of the second level, up to the next one.
fn section_with_title(changelog: &str, title: &str) -> Option<String> {
    let mut lines = changelog
        .lines()
        .skip_while(|line| heading_title(line) != Some(title));
    lines.next()?;
    let section: Vec<&str> = lines
        .take_while(|line| heading_title(line).is_none())
        .collect();
    Some(section.join("\n").trim().to_owned())
}

/// The first word of a heading of the second level, without brackets.
fn heading_title(line: &str) -> Option<&str> {
    let title = line.strip_prefix("## ")?.split_whitespace().next()?;
    Some(title.trim_matches(['[', ']']))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGELOG: &str = "# Changelog\nText.\n\n## Unreleased\nSoon.\n\n\
                             ## [0.2.0] - 2026-12-01\n### Added\n- Much.\n\n## 0.1.0\n- First.\n";

    #[test]
    fn a_version_has_its_own_section() {
        let notes = notes_of_version(CHANGELOG, "0.2.0").unwrap();
        assert_eq!(notes, "# Liqo 0.2.0\n\n### Added\n- Much.\n");
        assert!(
            notes_of_version(CHANGELOG, "0.1.0")
                .unwrap()
                .ends_with("- First.\n")
        );
    }

    #[test]
    fn a_version_without_a_section_has_that_of_the_next_release() {
        assert_eq!(
            notes_of_version(CHANGELOG, "0.3.0").unwrap(),
            "# Liqo 0.3.0\n\nSoon.\n"
        );
        assert_eq!(notes_of_version("# Changelog\n", "0.3.0"), None);
    }
}
