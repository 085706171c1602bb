//! Translates a call of the kubelet API into one of the provider's API server. Pure.
//!
//! Path segments come from the index and are checked, because the peer chose the namespace's name.
//! Only known query keys and values pass.

use jiff::Timestamp;

use super::RemotePodTarget;

/// The action on a container or pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodAction<'a> {
    Log { container: &'a str },
    Exec { container: &'a str },
    Attach { container: &'a str },
    PortForward,
}

/// The call cannot be forwarded.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum MalformedCall {
    #[error("{0:?} is not a name that Kubernetes gives")]
    Name(String),
    #[error("query parameter {key}: {value:?} is not {expected}")]
    Value {
        key: String,
        value: String,
        expected: &'static str,
    },
}

/// Path and query at the provider's API server.
pub(super) fn provider_uri(
    pod: &RemotePodTarget,
    action: PodAction,
    query: &str,
) -> Result<String, MalformedCall> {
    let (subresource, container) = match action {
        PodAction::Log { container } => ("log", Some(container)),
        PodAction::Exec { container } => ("exec", Some(container)),
        PodAction::Attach { container } => ("attach", Some(container)),
        PodAction::PortForward => ("portforward", None),
    };
    for name in [&pod.namespace, &pod.name]
        .into_iter()
        .map(String::as_str)
        .chain(container)
    {
        if !is_name(name) {
            return Err(MalformedCall::Name(name.chars().take(64).collect()));
        }
    }
    let mut passed = form_urlencoded::Serializer::new(String::new());
    if let Some(container) = container {
        passed.append_pair("container", container);
    }
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        let kind = match action {
            PodAction::Log { .. } => log_parameter(&key),
            PodAction::Exec { .. } | PodAction::Attach { .. } => {
                stream_parameter(&key, matches!(action, PodAction::Exec { .. }))
            }
            PodAction::PortForward => (key == "port").then_some(("ports", ParameterKind::Number)),
        };
        if let Some((name, kind)) = kind {
            passed.append_pair(name, &kind.checked_value(&key, &value)?);
        }
    }
    Ok(format!(
        "/api/v1/namespaces/{}/pods/{}/{subresource}?{}",
        pod.namespace,
        pod.name,
        passed.finish()
    ))
}

/// Path at the provider's API server of what the pods of a namespace use.
pub(super) fn usage_uri(namespace: &str) -> Result<String, MalformedCall> {
    if is_name(namespace) {
        Ok(format!(
            "/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods"
        ))
    } else {
        Err(MalformedCall::Name(namespace.chars().take(64).collect()))
    }
}

/// The type of a value.
#[derive(Clone, Copy)]
enum ParameterKind {
    Switch,
    Number,
    Time,
    Stream,
    Text,
}

/// Parameters with the same name on both sides.
fn log_parameter(key: &str) -> Option<(&'static str, ParameterKind)> {
    Some(match key {
        "follow" => ("follow", ParameterKind::Switch),
        "previous" => ("previous", ParameterKind::Switch),
        "timestamps" => ("timestamps", ParameterKind::Switch),
        "tailLines" => ("tailLines", ParameterKind::Number),
        "sinceSeconds" => ("sinceSeconds", ParameterKind::Number),
        "limitBytes" => ("limitBytes", ParameterKind::Number),
        "sinceTime" => ("sinceTime", ParameterKind::Time),
        "stream" => ("stream", ParameterKind::Stream),
        _ => return None,
    })
}

/// Parameters with another name in the API server's API.
fn stream_parameter(key: &str, commands: bool) -> Option<(&'static str, ParameterKind)> {
    Some(match key {
        "input" => ("stdin", ParameterKind::Switch),
        "output" => ("stdout", ParameterKind::Switch),
        "error" => ("stderr", ParameterKind::Switch),
        "tty" => ("tty", ParameterKind::Switch),
        "command" if commands => ("command", ParameterKind::Text),
        _ => return None,
    })
}

impl ParameterKind {
    fn checked_value(self, key: &str, value: &str) -> Result<String, MalformedCall> {
        let (holds, expected) = match self {
            Self::Switch => return Ok(matches!(value, "1" | "true").to_string()),
            Self::Text => return Ok(value.to_owned()),
            Self::Number => (
                value.parse::<u32>().is_ok()
                    || value.parse::<i64>().is_ok_and(|number| number >= 0),
                "a number",
            ),
            Self::Time => (value.parse::<Timestamp>().is_ok(), "a time (RFC 3339)"),
            Self::Stream => (
                ["All", "Stdout", "Stderr"].contains(&value),
                "one of All, Stdout, Stderr",
            ),
        };
        if holds {
            Ok(value.to_owned())
        } else {
            Err(MalformedCall::Value {
                key: key.into(),
                value: value.chars().take(64).collect(),
                expected,
            })
        }
    }
}

/// Whether a text is a valid path segment: a DNS subdomain, as all of these names are.
pub(super) fn is_name(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_dns_label)
}

/// Whether this is a part of a DNS subdomain.
fn is_dns_label(part: &str) -> bool {
    !part.is_empty()
        && !part.starts_with('-')
        && !part.ends_with('-')
        && part
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

#[cfg(test)]
mod tests {
    use liqo_byte_mutations::mutated_text;
    use proptest::prelude::*;

    use super::*;

    /// A client that is never used.
    fn pod(namespace: &str, name: &str) -> RemotePodTarget {
        let nobody = tower::service_fn(|_| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::empty()))
        });
        RemotePodTarget {
            client: kube::Client::new(nobody, "default"),
            namespace: namespace.into(),
            name: name.into(),
            is_customers: false,
        }
    }

    fn path(action: PodAction, query: &str) -> Result<String, MalformedCall> {
        provider_uri(&pod("demo-rome", "web-0"), action, query)
    }

    #[tokio::test]
    async fn every_parameter_of_logs_passes() {
        let query = "follow=true&previous=true&timestamps=true&tailLines=5&sinceSeconds=60&limitBytes=10&sinceTime=2026-01-01T00%3A00%3A00Z&stream=Stderr";
        assert_eq!(
            path(PodAction::Log { container: "c" }, query).unwrap(),
            format!("/api/v1/namespaces/demo-rome/pods/web-0/log?container=c&{query}")
        );
    }

    #[tokio::test]
    async fn a_command_keeps_its_words_and_their_order() {
        let query =
            "command=sh&command=-c&command=echo+%26%3D%3F%23%0A&input=1&output=1&error=1&tty=1";
        assert_eq!(
            path(PodAction::Exec { container: "c" }, query).unwrap(),
            "/api/v1/namespaces/demo-rome/pods/web-0/exec?container=c&command=sh&command=-c&command=echo+%26%3D%3F%23%0A&stdin=true&stdout=true&stderr=true&tty=true"
        );
    }

    #[tokio::test]
    async fn attach_takes_no_command_and_port_forward_only_ports() {
        assert_eq!(
            path(PodAction::Attach { container: "c" }, "command=sh&output=1").unwrap(),
            "/api/v1/namespaces/demo-rome/pods/web-0/attach?container=c&stdout=true"
        );
        assert_eq!(
            path(PodAction::PortForward, "port=80&tty=1").unwrap(),
            "/api/v1/namespaces/demo-rome/pods/web-0/portforward?ports=80"
        );
    }

    #[tokio::test]
    async fn unknown_parameters_do_not_pass() {
        let query = "container=other&namespace=kube-system&dryRun=All&watch=1&follow=true";
        assert_eq!(
            path(PodAction::Log { container: "c" }, query).unwrap(),
            "/api/v1/namespaces/demo-rome/pods/web-0/log?container=c&follow=true"
        );
    }

    #[tokio::test]
    async fn a_value_of_the_wrong_kind_is_refused() {
        for query in [
            "tailLines=-1",
            "tailLines=many",
            "sinceTime=yesterday",
            "stream=Both",
        ] {
            assert!(
                path(PodAction::Log { container: "c" }, query).is_err(),
                "{query}"
            );
        }
    }

    #[tokio::test]
    async fn a_name_that_would_lead_elsewhere_is_refused() {
        for hostile in [
            "..",
            "",
            "a/../../secrets",
            "a?b=c",
            "a#b",
            "a%2Fb",
            "A",
            "-a",
            "a\n",
        ] {
            assert!(
                provider_uri(&pod(hostile, "web-0"), PodAction::PortForward, "").is_err(),
                "namespace {hostile:?}"
            );
            assert!(usage_uri(hostile).is_err(), "namespace {hostile:?}");
            assert!(
                provider_uri(&pod("demo", hostile), PodAction::PortForward, "").is_err(),
                "pod {hostile:?}"
            );
            assert!(
                path(PodAction::Log { container: hostile }, "").is_err(),
                "container {hostile:?}"
            );
        }
    }

    const QUERY: &str = "follow=true&tailLines=5&sinceTime=2026-01-01T00%3A00%3A00Z&stream=All&command=sh&command=-c&input=1&tty=1&port=80";

    fn valid_names() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("demo-rome-x7k2qd".to_owned()),
            Just("web-0.example".to_owned())
        ]
    }

    proptest! {
        #[test]
        fn a_mutated_call_leads_to_the_pod_itself_or_nowhere(
            namespace in prop_oneof![valid_names(), mutated_text(valid_names())],
            name in prop_oneof![valid_names(), mutated_text(valid_names())],
            container in mutated_text(valid_names()),
            query in mutated_text(Just(QUERY.to_owned())),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _entered = runtime.enter();
            let pod = pod(&namespace, &name);
            let container = container.as_str();
            for action in [PodAction::Log { container }, PodAction::Exec { container }, PodAction::Attach { container }, PodAction::PortForward] {
                let Ok(uri) = provider_uri(&pod, action, &query) else { continue };
                // A longer one is refused when the request is made.
                let Ok(parsed) = uri.parse::<http::Uri>() else { prop_assert!(uri.len() > 60_000); continue };
                let segments: Vec<&str> = parsed.path().split('/').collect();
                prop_assert_eq!(&segments[..6], &["", "api", "v1", "namespaces", namespace.as_str(), "pods"]);
                prop_assert_eq!((segments.len(), segments[6]), (8, name.as_str()));
                let keys = ["container", "follow", "previous", "timestamps", "tailLines", "sinceSeconds", "limitBytes", "sinceTime",
                    "stream", "stdin", "stdout", "stderr", "tty", "command", "ports"];
                let mut passed = form_urlencoded::parse(parsed.query().unwrap_or_default().as_bytes());
                prop_assert!(passed.all(|(key, _)| keys.contains(&key.as_ref())), "{}", parsed);
            }
        }
    }
}
