//! Compressed tar archives with the same bytes for the same files: entries are sorted by path,
//! times are given, owners and modes are fixed, and the header of gzip has neither a time nor a
//! name.

use std::io::{Cursor, Result, Write as _};

use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

/// A file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveFile {
    /// Its path in the archive, relative.
    pub path: String,
    pub kind: FileKind,
    pub bytes: Vec<u8>,
}

/// Decides the mode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Program,
    Text,
}

impl FileKind {
    const fn mode(self) -> u32 {
        match self {
            Self::Program => 0o755,
            Self::Text => 0o644,
        }
    }
}

/// Packs files as `.tar.gz`. `time` is in seconds since 1970.
pub fn pack_archive(files: &[ArchiveFile], time: u64) -> Result<Vec<u8>> {
    let mut sorted: Vec<&ArchiveFile> = files.iter().collect();
    sorted.sort_by(|a, b| a.path.cmp(&b.path));
    let mut tar = Builder::new(Vec::new());
    for file in sorted {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(file.kind.mode());
        header.set_size(file.bytes.len() as u64);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(time);
        tar.append_data(&mut header, &file.path, Cursor::new(&file.bytes))?;
    }
    compress_bytes(&tar.into_inner()?)
}

fn compress_bytes(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new()
        .mtime(0)
        .write(Vec::new(), Compression::default());
    encoder.write_all(bytes)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    fn text_file(path: &str, text: &str) -> ArchiveFile {
        ArchiveFile {
            path: path.to_owned(),
            kind: FileKind::Text,
            bytes: text.as_bytes().to_vec(),
        }
    }

    #[test]
    fn the_order_of_files_changes_no_byte() {
        let (a, b) = (text_file("x/a", "1"), text_file("x/b", "2"));
        let one_way = pack_archive(&[a.clone(), b.clone()], 7).unwrap();
        assert_eq!(one_way, pack_archive(&[b.clone(), a.clone()], 7).unwrap());
        assert_ne!(one_way, pack_archive(&[a, b], 8).unwrap());
    }

    #[test]
    fn entries_have_the_given_time_and_fixed_owners_and_modes() {
        let program = ArchiveFile {
            kind: FileKind::Program,
            ..text_file("x/run", "program")
        };
        let packed = pack_archive(&[program, text_file("x/LICENSE", "text")], 7).unwrap();
        let mut tar = tar::Archive::new(GzDecoder::new(packed.as_slice()));
        let mut lines = Vec::new();
        for entry in tar.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            let (path, header) = (entry.path().unwrap(), entry.header());
            lines.push(format!(
                "{} {:o} {} {} {} {content}",
                path.display(),
                header.mode().unwrap(),
                header.uid().unwrap(),
                header.gid().unwrap(),
                header.mtime().unwrap()
            ));
        }
        assert_eq!(
            lines,
            ["x/LICENSE 644 0 0 7 text", "x/run 755 0 0 7 program"]
        );
    }

    #[test]
    fn the_header_of_gzip_has_no_time() {
        let packed = pack_archive(&[text_file("x", "1")], 7).unwrap();
        assert_eq!(packed[4..8], [0; 4]);
    }
}
