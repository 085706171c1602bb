//! The names of images, given in parts: registry, repository, tag and digest, as values of the
//! chart.

use super::table::{self, GLOBAL_REGISTRY};

/// The parts that were set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageParts {
    /// Registry of all images.
    registry: Option<String>,
    manager: ImageNameParts,
    fabric: ImageNameParts,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ImageNameParts {
    registry: Option<String>,
    repository: Option<String>,
    tag: Option<String>,
    digest: Option<String>,
}

impl ImageParts {
    /// Takes a key, if it is one of an image.
    pub(super) fn set(&mut self, key: &str, value: &str) -> bool {
        if key == GLOBAL_REGISTRY {
            self.registry = Some(value.to_owned());
            return true;
        }
        let Some((component, part)) = key.split_once(".image.") else {
            return false;
        };
        let parts = if component == "fabric" {
            &mut self.fabric
        } else {
            &mut self.manager
        };
        let field = match part {
            "registry" => &mut parts.registry,
            "repository" => &mut parts.repository,
            "tag" => &mut parts.tag,
            "digest" => &mut parts.digest,
            _ => return false,
        };
        *field = Some(value.to_owned());
        true
    }

    /// The image of the manager; nothing if no part was set.
    pub(super) fn manager(&self) -> Option<String> {
        self.compose("controllerManager", &self.manager)
    }

    /// The image of the fabric; nothing if no part was set.
    pub(super) fn fabric(&self) -> Option<String> {
        self.compose("fabric", &self.fabric)
    }

    fn compose(&self, component: &str, parts: &ImageNameParts) -> Option<String> {
        let common = self
            .registry
            .clone()
            .filter(|registry| !registry.is_empty());
        if common.is_none() && *parts == ImageNameParts::default() {
            return None;
        }
        let registry = common
            .unwrap_or_else(|| part_or_default(parts.registry.as_deref(), component, "registry"));
        let repository = part_or_default(parts.repository.as_deref(), component, "repository");
        let name = if registry.is_empty() {
            repository
        } else {
            format!("{registry}/{repository}")
        };
        let digest = part_or_default(parts.digest.as_deref(), component, "digest");
        let tag = part_or_default(parts.tag.as_deref(), component, "tag");
        Some(match (digest.as_str(), tag.as_str()) {
            ("", "") => format!("{name}:{}", env!("CARGO_PKG_VERSION")),
            ("", tag) => format!("{name}:{tag}"),
            (digest, _) => format!("{name}@{digest}"),
        })
    }
}

/// The part that was set, or else its default, as the table says.
fn part_or_default(set: Option<&str>, component: &str, part: &str) -> String {
    if let Some(set) = set {
        return set.to_owned();
    }
    let row = table::find(&format!("{component}.image.{part}"));
    row.and_then(|row| serde_json::from_str(row.default).ok())
        .unwrap_or_default()
}
