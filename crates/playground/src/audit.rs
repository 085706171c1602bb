//! Who changed what in a cluster, from the API server's audit log.

use serde_json::Value;

/// One request that was to change something.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Write {
    /// Who made it: `system:serviceaccount:liqo:liqo-controller-manager`.
    pub user: String,
    /// `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// The plural: `pods`. Empty for requests that are not about an object.
    pub resource: String,
    /// `status`, `binding`, ...; empty for the object itself.
    pub subresource: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// Empty where the server makes the name.
    pub name: String,
    /// The HTTP status of the answer.
    pub code: u64,
}

/// The last line may be half written: it counts the next time.
pub(crate) fn parse(log: &str) -> Vec<Write> {
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
        assert_eq!((writes[0].resource.as_str(), writes[0].subresource.as_str(), writes[0].code), ("pods", "status", 200));
    }
}
