//! The Helm chart as a package: the files of `deploy/charts/liqo` below the folder `liqo`, with
//! the version of the release.

use anyhow::{Result, ensure};

use crate::archive::{ArchiveFile, FileKind};

const CHART_FILE: &str = "Chart.yaml";

/// A file of the chart's folder.
#[derive(Clone, Debug)]
pub struct ChartFile {
    /// Its path in the folder.
    pub path: String,
    pub bytes: Vec<u8>,
}

/// The files of the package, in which `Chart.yaml` has this version.
pub fn package_files(files: Vec<ChartFile>, version: &str) -> Result<Vec<ArchiveFile>> {
    let mut packed = Vec::new();
    for file in files {
        let bytes = if file.path == CHART_FILE {
            let text = String::from_utf8_lossy(&file.bytes);
            with_version(&text, version)?.into_bytes()
        } else {
            file.bytes
        };
        packed.push(ArchiveFile {
            path: format!("liqo/{}", file.path),
            kind: FileKind::Text,
            bytes,
        });
    }
    Ok(packed)
}

/// `Chart.yaml` with other values of its fields `version` and `appVersion`.
fn with_version(chart: &str, version: &str) -> Result<String> {
    let mut found = 0;
    let mut lines = Vec::new();
    for line in chart.lines() {
        let field = ["version:", "appVersion:"]
            .into_iter()
            .find(|field| line.starts_with(field));
        if let Some(field) = field {
            found += 1;
            lines.push(format!("{field} \"{version}\"\n"));
        } else {
            lines.push(format!("{line}\n"));
        }
    }
    ensure!(
        found == 2,
        "{CHART_FILE} of the chart has no version or no appVersion: \
         run `cargo liqoctl generate chart`"
    );
    Ok(lines.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart_file(path: &str, text: &str) -> ChartFile {
        ChartFile {
            path: path.to_owned(),
            bytes: text.as_bytes().to_vec(),
        }
    }

    #[test]
    fn only_the_versions_of_the_chart_itself_change() {
        let chart = "annotations:\n  crds: |\n      version: v1\nappVersion: \"0\"\nversion: 1\n";
        let files = vec![
            chart_file("Chart.yaml", chart),
            chart_file("values.yaml", "version: 1\n"),
        ];
        let packed = package_files(files, "0.2.0").unwrap();
        assert_eq!(packed[0].path, "liqo/Chart.yaml");
        assert_eq!(
            String::from_utf8_lossy(&packed[0].bytes),
            "annotations:\n  crds: |\n      version: v1\nappVersion: \"0.2.0\"\n\
             version: \"0.2.0\"\n"
        );
        assert_eq!(packed[1].bytes, b"version: 1\n");
    }

    #[test]
    fn a_chart_without_a_version_is_refused() {
        let files = vec![chart_file("Chart.yaml", "name: liqo\n")];
        assert!(package_files(files, "0.2.0").is_err());
    }
}
