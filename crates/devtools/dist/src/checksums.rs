//! `SHA256SUMS`: a line for each file, as `sha256sum --check` reads it.

use data_encoding::HEXLOWER;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// The name of the file with the checksums of all others.
pub const CHECKSUMS_FILE: &str = "SHA256SUMS";

/// A file, its size in bytes, and its digest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FileChecksum {
    pub name: String,
    pub size: u64,
    /// 64 hexadecimal digits.
    pub sha256: String,
}

impl FileChecksum {
    pub fn of_bytes(name: &str, bytes: &[u8]) -> Self {
        Self {
            name: name.to_owned(),
            size: bytes.len() as u64,
            sha256: sha256_hex(bytes),
        }
    }
}

/// The SHA-256 of bytes in hexadecimal digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}

/// The content of `SHA256SUMS`, sorted by name.
pub fn render_checksums(files: &[FileChecksum]) -> String {
    let mut lines: Vec<_> = files
        .iter()
        .map(|file| (&file.name, &file.sha256))
        .collect();
    lines.sort();
    let lines: Vec<String> = lines
        .into_iter()
        .map(|(name, sha256)| format!("{sha256}  {name}\n"))
        .collect();
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_its_line_in_the_order_of_names() {
        let files = [
            FileChecksum::of_bytes("b", b"abc"),
            FileChecksum::of_bytes("a", b""),
        ];
        let text = render_checksums(&files);
        assert_eq!(
            text,
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a\n\
             ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  b\n"
        );
    }
}
