//! Makes a release: the steps in their order, and the table at the end.
//!
//! Each artefact is written as soon as it is made, and only its checksum is kept. The provenance
//! comes last, because it names all others.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use liqo_playground::CargoProfile;
use liqoctl::{output, progress::StepProgress};
use serde::Serialize;
use serde_json::Value;

use crate::{
    archive::{ArchiveFile, FileKind, pack_archive},
    arguments::{Arguments, ArtefactKind},
    artefact_names::{binary_file, binary_folder, image_file, release_files, single_file},
    cargo_metadata::{ShippedProgram, shipped_programs},
    chart::{ChartFile, package_files},
    checksums::{FileChecksum, sha256_hex},
    crate_graph::{ShippedCrate, shipped_crates},
    files::{files_below, read_bytes, read_text},
    images::{ImageTexts, make_image},
    licence_files::licensed_crates,
    lock_file::locked_checksums,
    manifests::{definitions_document, installation_document},
    notices::render_notices,
    output_folder::OutputFolder,
    programs::{build_shipped, find_shipped},
    provenance::{BuildFacts, Material, render_provenance},
    release_notes::notes_of_version,
    sbom::{SbomSubject, render_sbom},
    source_tree::SourceTree,
};

/// The version of the workspace, which this program shares.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Hexadecimal digits of a checksum in the table.
const SHORT_CHECKSUM_LEN: usize = 12;

/// What was made.
#[derive(Clone, Debug, Serialize)]
pub struct MadeRelease {
    pub version: &'static str,
    pub commit: String,
    pub folder: PathBuf,
    pub files: Vec<FileChecksum>,
}

/// Makes the artefacts that the arguments select.
pub async fn make_release(arguments: &Arguments, progress: &StepProgress) -> Result<MadeRelease> {
    let kinds = arguments.selected_kinds();
    let step = "Reading the workspace";
    let sources = ReleaseSources::read_workspace(arguments.allow_dirty);
    let sources = progress.run_step(step, sources).await?;
    let mut folder =
        OutputFolder::open_checked(&arguments.output, release_files(&sources.programs, VERSION))?;
    let paths = program_paths(arguments, &kinds, &sources, progress).await?;
    folder.clear_folder()?;
    let mut materials = sources.materials.clone();
    if kinds.contains(&ArtefactKind::Binaries) {
        let step = "Packing the programs";
        let pack = async { write_binaries(&sources, &paths, &mut folder) };
        progress.run_step(step, pack).await?;
    }
    if kinds.contains(&ArtefactKind::Images) {
        let step = "Making the images";
        let write = write_images(&sources, &paths, &mut folder, progress, step);
        materials.extend(progress.run_step(step, write).await?);
    }
    let step = "Writing the documents";
    let write = async { write_documents(&sources, &kinds, &mut folder) };
    progress.run_step(step, write).await?;
    if kinds.contains(&ArtefactKind::Provenance) {
        let is_built = !paths.is_empty() && arguments.programs.is_none();
        let profile = CargoProfile::from(arguments.profile).name();
        let facts = BuildFacts {
            version: VERSION,
            commit: &sources.tree.commit,
            is_dirty: sources.tree.is_dirty,
            profile: is_built.then_some(profile),
            artefacts: kinds.into_iter().collect(),
            builder: &arguments.builder,
            has_given_programs: arguments.programs.is_some(),
            toolchain: &sources.tree.compiler.version,
            materials,
        };
        write_provenance(&facts, &mut folder)?;
    }
    Ok(MadeRelease {
        version: VERSION,
        commit: sources.tree.commit,
        folder: arguments.output.clone(),
        files: folder.finish_release()?,
    })
}

/// The result as a table for people.
pub fn format_release(release: &MadeRelease) -> String {
    let table = output::format_table(
        &["FILE", "SIZE", "SHA256"],
        release.files.iter().map(table_row),
    );
    format!(
        "{table}\n\nLiqo {} is in {}.",
        release.version,
        release.folder.display()
    )
}

fn table_row(file: &FileChecksum) -> Vec<String> {
    let short = file.sha256.get(..SHORT_CHECKSUM_LEN);
    vec![
        file.name.clone(),
        format_size(file.size),
        short.unwrap_or(&file.sha256).to_owned(),
    ]
}

/// A size in bytes, kilobytes or megabytes of 1,000.
fn format_size(bytes: u64) -> String {
    match bytes {
        0..1000 => format!("{bytes} B"),
        1000..1_000_000 => format!("{}.{} kB", bytes / 1000, bytes % 1000 / 100),
        _ => format!("{}.{} MB", bytes / 1_000_000, bytes % 1_000_000 / 100_000),
    }
}

/// What artefacts are made from.
struct ReleaseSources {
    tree: SourceTree,
    programs: Vec<ShippedProgram>,
    crates: Vec<ShippedCrate>,
    /// Liqo's own licence.
    licence: String,
    /// The licences of third parties.
    notices: String,
    /// Materials of every artefact, for the provenance.
    materials: Vec<Material>,
}

impl ReleaseSources {
    async fn read_workspace(allow_dirty: bool) -> Result<Self> {
        let tree = SourceTree::read_committed(allow_dirty)?;
        let lock_file = read_text(&tree.folder.join("Cargo.lock"))?;
        let metadata = tree.read_metadata().await?;
        let programs = shipped_programs(&metadata);
        let crates = shipped_crates(&metadata, &programs, &locked_checksums(&lock_file));
        let licensed = licensed_crates(&crates)?;
        let lock_material = Material {
            name: "Cargo.lock".to_owned(),
            sha256: Some(sha256_hex(lock_file.as_bytes())),
        };
        Ok(Self {
            licence: read_text(&tree.folder.join("LICENSE"))?,
            notices: render_notices(VERSION, &tree.compiler.version, &licensed),
            materials: vec![lock_material],
            tree,
            programs,
            crates,
        })
    }
}

/// The paths of the programs by name; none if no artefact needs them.
async fn program_paths(
    arguments: &Arguments,
    kinds: &BTreeSet<ArtefactKind>,
    sources: &ReleaseSources,
    progress: &StepProgress,
) -> Result<BTreeMap<String, PathBuf>> {
    let needed = [ArtefactKind::Binaries, ArtefactKind::Images];
    if needed.iter().all(|kind| !kinds.contains(kind)) {
        return Ok(BTreeMap::new());
    }
    if let Some(folder) = &arguments.programs {
        return find_shipped(folder, &sources.programs);
    }
    let profile = arguments.profile.into();
    build_shipped(&sources.tree, &sources.programs, profile, progress).await
}

/// An archive of each program, with the licences.
fn write_binaries(
    sources: &ReleaseSources,
    paths: &BTreeMap<String, PathBuf>,
    folder: &mut OutputFolder,
) -> Result<()> {
    for (name, path) in paths {
        let base = binary_folder(name, VERSION);
        let files = [
            ArchiveFile {
                path: format!("{base}/{name}"),
                kind: FileKind::Program,
                bytes: read_bytes(path)?,
            },
            text_file(format!("{base}/LICENSE"), &sources.licence),
            text_file(format!("{base}/third-party-licences.txt"), &sources.notices),
        ];
        let packed = pack_archive(&files, sources.tree.epoch_seconds())
            .with_context(|| format!("cannot pack {name}"))?;
        folder.write_artefact(&binary_file(name, VERSION), &packed)?;
    }
    Ok(())
}

fn text_file(path: String, text: &str) -> ArchiveFile {
    ArchiveFile {
        path,
        kind: FileKind::Text,
        bytes: text.as_bytes().to_vec(),
    }
}

/// An image of each program that runs in clusters. Returns the packages that the images hold.
async fn write_images(
    sources: &ReleaseSources,
    paths: &BTreeMap<String, PathBuf>,
    folder: &mut OutputFolder,
    progress: &StepProgress,
    step: &str,
) -> Result<Vec<Material>> {
    let texts = ImageTexts {
        licence: sources.licence.clone(),
        notices: sources.notices.clone(),
    };
    let mut packages = BTreeSet::new();
    for program in &sources.programs {
        let (Some(image), Some(path)) = (&program.image, paths.get(&program.name)) else {
            continue;
        };
        progress.message(step, image);
        let made = make_image(&sources.tree, VERSION, image, path, &texts).await?;
        folder.write_artefact(&image_file(image, VERSION), &made.archive.bytes)?;
        packages.extend(made.packages);
    }
    Ok(packages
        .into_iter()
        .map(|package| Material {
            name: package.package_url(),
            sha256: None,
        })
        .collect())
}

/// The artefacts that need no program.
fn write_documents(
    sources: &ReleaseSources,
    kinds: &BTreeSet<ArtefactKind>,
    folder: &mut OutputFolder,
) -> Result<()> {
    for kind in kinds {
        let document = document_bytes(sources, *kind)?;
        if let (Some(name), Some(bytes)) = (single_file(*kind, VERSION), document) {
            folder.write_artefact(&name, &bytes)?;
        }
    }
    Ok(())
}

/// The content of an artefact; nothing for those that other steps make.
fn document_bytes(sources: &ReleaseSources, kind: ArtefactKind) -> Result<Option<Vec<u8>>> {
    let tree = &sources.tree;
    Ok(Some(match kind {
        ArtefactKind::Binaries | ArtefactKind::Images | ArtefactKind::Provenance => {
            return Ok(None);
        }
        ArtefactKind::Chart => pack_chart(&tree.folder.join("deploy/charts/liqo"), tree)?,
        ArtefactKind::Crds => definitions_document()?.into_bytes(),
        ArtefactKind::Manifests => installation_document(VERSION)?.into_bytes(),
        ArtefactKind::Sbom => {
            let subject = SbomSubject {
                version: VERSION,
                time: &tree.time.to_string(),
                programs: &sources.programs,
            };
            json_bytes(&render_sbom(&subject, &sources.crates))?
        }
        ArtefactKind::Notices => sources.notices.clone().into_bytes(),
        ArtefactKind::Notes => {
            let changelog = read_text(&tree.folder.join("CHANGELOG.md"))?;
            let notes = notes_of_version(&changelog, VERSION).with_context(|| {
                format!("CHANGELOG.md has neither a section {VERSION} nor Unreleased")
            })?;
            notes.into_bytes()
        }
    }))
}

/// The statement about all artefacts so far.
fn write_provenance(facts: &BuildFacts<'_>, folder: &mut OutputFolder) -> Result<()> {
    let statement = render_provenance(facts, folder.written_files());
    let name = single_file(ArtefactKind::Provenance, VERSION);
    let name = name.context("the provenance has no name")?;
    folder.write_artefact(&name, &json_bytes(&statement)?)
}

fn pack_chart(chart: &Path, tree: &SourceTree) -> Result<Vec<u8>> {
    let mut files = Vec::new();
    for path in files_below(chart)? {
        let name = path.strip_prefix(chart).unwrap_or(&path);
        files.push(ChartFile {
            path: name.display().to_string(),
            bytes: read_bytes(&path)?,
        });
    }
    let packed = package_files(files, VERSION)?;
    pack_archive(&packed, tree.epoch_seconds()).context("cannot pack the chart")
}

fn json_bytes(document: &Value) -> Result<Vec<u8>> {
    Ok((serde_json::to_string_pretty(document)? + "\n").into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        assert_eq!(format_size(999), "999 B");
        assert_eq!(format_size(1_950), "1.9 kB");
        assert_eq!(format_size(12_345_678), "12.3 MB");
    }
}
