//! The images of programs that run in clusters: one OCI layout each, made by the playground's
//! builder of images.
//!
//! An image holds the program, its shared libraries, the programs that it calls, and the licences
//! of all of these. It has the name that Liqo's manifests use, so that nodes which import it need
//! no registry.

use std::{collections::BTreeMap, path::Path};

use anyhow::Result;
use liqo_playground::{ImageArchive, ImageSpec, build_image, machine_files};

use crate::{
    debian::{DebianPackage, copyright_files, owning_packages, package_list},
    source_tree::SourceTree,
};

/// The image whose program configures the node's kernel, and what it calls for that.
const FABRIC_IMAGE: &str = "fabric";
const FABRIC_PROGRAMS: [&str; 1] = ["nft"];

/// Licences that every image holds.
#[derive(Clone, Debug)]
pub struct ImageTexts {
    /// Liqo's own licence.
    pub licence: String,
    /// The licences of third parties.
    pub notices: String,
}

/// An image, and the packages that files in it come from.
#[derive(Debug)]
pub struct ProgramImage {
    pub archive: ImageArchive,
    pub packages: Vec<DebianPackage>,
}

/// Makes the image of a program.
pub async fn make_image(
    tree: &SourceTree,
    version: &str,
    image: &str,
    program: &Path,
    texts: &ImageTexts,
) -> Result<ProgramImage> {
    let mut spec = ImageSpec {
        labels: image_labels(tree, version, image),
        ..ImageSpec::new(format!("localhost/liqo/{image}:{version}"), program)
    };
    if image == FABRIC_IMAGE {
        spec.programs = FABRIC_PROGRAMS.map(str::to_owned).to_vec();
    }
    let from_machine = machine_files(&spec).await?;
    let paths: Vec<_> = from_machine.into_iter().map(|file| file.source).collect();
    let packages = owning_packages(&paths)?;
    spec.texts = vec![
        (
            "usr/share/doc/liqo/LICENSE".to_owned(),
            texts.licence.clone(),
        ),
        (
            "usr/share/doc/liqo/third-party-licences.txt".to_owned(),
            texts.notices.clone(),
        ),
        (
            "usr/share/doc/liqo/debian-packages.txt".to_owned(),
            package_list(&packages),
        ),
    ];
    spec.texts.extend(copyright_files(&packages)?);
    Ok(ProgramImage {
        archive: build_image(&spec).await?,
        packages,
    })
}

/// Labels by the names that the OCI image specification gives.
fn image_labels(tree: &SourceTree, version: &str, image: &str) -> BTreeMap<String, String> {
    let labels = [
        ("created", tree.time.to_string()),
        ("licenses", "Apache-2.0".to_owned()),
        ("revision", tree.commit.clone()),
        ("title", format!("liqo/{image}")),
        ("version", version.to_owned()),
    ];
    labels
        .into_iter()
        .map(|(name, value)| (format!("org.opencontainers.image.{name}"), value))
        .collect()
}
