//! Who changed what in a cluster, from the API server's audit log.

use std::{
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::error::{Error, Result};

/// A request that changed something or tried to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Write {
    /// The user, such as `system:serviceaccount:liqo:liqo-controller-manager`.
    pub user: String,
    /// `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// The plural: `pods`. Empty for requests that are not about an object.
    pub resource: String,
    /// `status`, `binding`, ...; empty for the object itself.
    pub subresource: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// Empty where the server generates the name.
    pub name: String,
    /// HTTP status of the response.
    pub code: u64,
}

/// Length of the log in bytes, to be given to [`since`] later.
pub(crate) fn position(log: &Path) -> Result<u64> {
    Ok(fs::metadata(log).map_err(Error::file("read", log))?.len())
}

/// The writes behind this position. If the API server has rotated the log since, the rest of the
/// previous file comes first.
pub(crate) fn since(log: &Path, position: u64) -> Result<Vec<Write>> {
    if self::position(log)? >= position {
        return Ok(parse(&read_from(log, position)?));
    }
    let mut text = match previous(log) {
        Some(previous) => read_from(&previous, position)?,
        None => String::new(),
    };
    text.push_str(&read_from(log, 0)?);
    Ok(parse(&text))
}

/// The newest rotated file: `audit-TIME.log`, where later times sort later.
fn previous(log: &Path) -> Option<PathBuf> {
    let prefix = format!("{}-", log.file_stem()?.to_str()?);
    let files = fs::read_dir(log.parent()?)
        .ok()?
        .flatten()
        .map(|entry| entry.path());
    files
        .filter(|path| {
            path.file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| name.starts_with(&prefix))
        })
        .max()
}

fn read_from(log: &Path, position: u64) -> Result<String> {
    let failed = || Error::file("read", log);
    let mut file = File::open(log).map_err(failed())?;
    file.seek(SeekFrom::Start(position)).map_err(failed())?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed())?;
    // The last line may end in the middle of a character.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Skips a last line that is only half written.
fn parse(log: &str) -> Vec<Write> {
    log.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|event: &Value| event["stage"] == "ResponseComplete")
        .map(|event| write(&event))
        .collect()
}

fn write(event: &Value) -> Write {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["objectRef"];
    Write {
        user: text(&event["user"]["username"]),
        verb: text(&event["verb"]),
        resource: text(&object["resource"]),
        subresource: text(&object["subresource"]),
        namespace: text(&object["namespace"]),
        name: text(&object["name"]),
        code: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_counts_once_and_half_a_line_not_at_all() {
        let log = concat!(
            r#"{"stage":"ResponseStarted","verb":"create","user":{"username":"a"}}"#,
            "\n",
            r#"{"stage":"ResponseComplete","verb":"patch","user":{"username":"a"},"objectRef":{"resource":"pods","subresource":"status","namespace":"n","name":"p"},"responseStatus":{"code":200}}"#,
            "\n",
            r#"{"stage":"ResponseCompl"#,
        );
        let writes = parse(log);
        assert_eq!(writes.len(), 1);
        assert_eq!(
            (
                writes[0].resource.as_str(),
                writes[0].subresource.as_str(),
                writes[0].code
            ),
            ("pods", "status", 200)
        );
    }

    #[test]
    fn writes_behind_a_position_are_found_after_a_rotation_too() {
        let directory =
            std::env::temp_dir().join(format!("liqo-playground-audit-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let log = directory.join("audit.log");
        let line = |verb: &str| {
            format!(
                "{}\n",
                serde_json::json!({ "stage": "ResponseComplete", "verb": verb })
            )
        };
        let verbs = |position: u64| {
            since(&log, position)
                .unwrap()
                .into_iter()
                .map(|write| write.verb)
                .collect::<Vec<_>>()
        };
        fs::write(&log, line("create")).unwrap();
        let position = position(&log).unwrap();
        assert_eq!(verbs(position), Vec::<String>::new());
        fs::write(&log, line("create") + &line("patch")).unwrap();
        assert_eq!(verbs(position), ["patch"]);
        fs::rename(&log, directory.join("audit-2026-11-23T03-00-00.000.log")).unwrap();
        fs::write(&log, "").unwrap();
        assert_eq!(verbs(position), ["patch"]);
        fs::write(&log, line("x")).unwrap();
        assert_eq!(verbs(position), ["patch", "x"]);
        fs::remove_dir_all(&directory).unwrap();
    }
}
