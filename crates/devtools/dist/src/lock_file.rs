//! The checksums of crates in `Cargo.lock`. cargo writes this file, always in the same form: a
//! block for each package, and a line for each of its fields. `cargo metadata` has no checksums.

use std::collections::BTreeMap;

/// A package in `Cargo.lock`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockedPackage {
    pub name: String,
    pub version: String,
}

/// SHA-256 of the packages that come from a registry.
pub fn locked_checksums(lock_file: &str) -> BTreeMap<LockedPackage, String> {
    lock_file
        .split("[[package]]")
        .skip(1)
        .filter_map(|block| {
            let package = LockedPackage {
                name: field_of(block, "name")?,
                version: field_of(block, "version")?,
            };
            Some((package, field_of(block, "checksum")?))
        })
        .collect()
}

/// The text of a line `field = "text"`.
fn field_of(block: &str, field: &str) -> Option<String> {
    let rest = block
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(" = \""))?;
    rest.strip_suffix('"').map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_a_registry_have_checksums_and_our_own_have_none() {
        let text = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\
            source = \"registry\"\nchecksum = \"abc\"\ndependencies = [\n \"liqo-b\",\n]\n\n\
            [[package]]\nname = \"liqo-b\"\nversion = \"0.1.0\"\n";
        let found = locked_checksums(text);
        let a = LockedPackage {
            name: "a".to_owned(),
            version: "1.0.0".to_owned(),
        };
        assert_eq!(found, BTreeMap::from([(a, "abc".to_owned())]));
    }
}
