//! `dist`, run as `cargo dist`: makes all artefacts of a release in one folder, without Docker and
//! without a network other than cargo's own.
//!
//! Two runs on the same commit and the same machine write equal bytes: times are the commit's,
//! entries of archives are sorted, owners and modes are fixed. Nothing is signed or published here.
//!
//! ```text
//!   cargo metadata, Cargo.lock ──▶ crate_graph ──▶ sbom, notices ──────────┐
//!   cargo build ──▶ programs ──┬──▶ archive: NAME-VERSION-linux-ARCH.tar.gz│
//!                              └──▶ images, debian: OCI layouts            ├──▶ checksums, provenance
//!   deploy/charts, deploy/liqo ──▶ chart, manifests                        │
//!   CHANGELOG.md ──▶ release_notes ────────────────────────────────────────┘
//! ```
//!
//! Read `release.rs` first: it has the steps in their order. Pure modules get values and return
//! bytes or text: `archive`, `artefact_names`, `cargo_metadata`, `chart`, `checksums`, `crate_graph`, `lock_file`,
//! `notices`, `provenance`, `release_notes`, `sbom`. The others run programs, and read and write
//! files. For users: `docs/how-to/make-a-release.md`.

mod archive;
mod arguments;
mod artefact_names;
mod cargo_metadata;
mod chart;
mod checksums;
mod crate_graph;
mod debian;
mod files;
mod images;
mod licence_files;
mod lock_file;
mod manifests;
mod notices;
mod output_folder;
mod programs;
mod provenance;
mod release;
mod release_notes;
mod sbom;
mod source_tree;

use std::process::ExitCode;

use clap::Parser as _;
use liqoctl::{output, program, progress::StepProgress};

use arguments::Arguments;

const PROGRAM: &str = "dist";

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    program::run_program(PROGRAM, false, run_dist(arguments))
}

async fn run_dist(arguments: Arguments) -> anyhow::Result<()> {
    let release = release::make_release(&arguments, &StepProgress::new()).await?;
    output::print_result(arguments.format, &release, release::format_release)
}
