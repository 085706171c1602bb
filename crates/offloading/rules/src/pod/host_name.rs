//! Host names that a kubelet makes of a pod's name and namespace.

use liqo_api::OffloadedReason;
use serde_json::Value;

use crate::pod::admission::AdmissionRefusal;
use crate::views::PodView;

/// Maximum length of a host name. Source: `pkg/kubelet/util` of Kubernetes, after `HOST_NAME_MAX`
/// of Linux.
const MAX_LEN: usize = 64;
/// Maximum length of the name of a pod as its host name.
const MAX_LABEL_LEN: usize = 63;

/// The refusal of a pod whose host name is its whole domain name (`setHostnameAsFQDN`) and would be
/// too long here: its kubelet would start no container of it. At home the name of the namespace is
/// mostly shorter.
pub fn long_name_refusal(
    pod: &Value,
    (name, namespace): (&str, &str),
    domain: &str,
) -> Option<AdmissionRefusal> {
    let spec = PodView::of(pod).spec();
    let subdomain = spec.subdomain();
    if subdomain.is_empty() || spec.set_hostname_as_fqdn() != Some(true) {
        return None;
    }
    let host = Some(spec.hostname()).filter(|host| !host.is_empty());
    let host = host.unwrap_or_else(|| {
        name.get(..MAX_LABEL_LEN)
            .unwrap_or(name)
            .trim_end_matches(['-', '.'])
    });
    let full = format!("{host}.{subdomain}.{namespace}.svc.{domain}");
    (full.len() > MAX_LEN).then(|| AdmissionRefusal {
        reason: OffloadedReason::Invalid.as_str(),
        message: format!(
            "setHostnameAsFQDN would give the pod the host name {full}, which has {} characters, and Linux allows {MAX_LEN}: use shorter \
             names, or a namespace that has the same name at the provider (namespaceMappingStrategy EnforceSameName)",
            full.len()
        ),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(spec: &Value, name: &str) -> bool {
        long_name_refusal(
            &json!({ "spec": spec }),
            (name, "c06-rome-5v3yol"),
            "cluster.local",
        )
        .is_some()
    }

    #[test]
    fn a_pod_whose_whole_name_is_no_host_name_here_is_refused() {
        // What follows the name has 35 characters.
        let spec = json!({ "setHostnameAsFQDN": true, "subdomain": "s" });
        let rest = ".s.c06-rome-5v3yol.svc.cluster.local".len();
        assert!(refused(&spec, &"n".repeat(65 - rest)) && !refused(&spec, &"n".repeat(64 - rest)));
        let named = json!({ "setHostnameAsFQDN": true, "subdomain": "s", "hostname": "short" });
        assert!(!refused(&named, &"n".repeat(60)));
        for spec in [
            json!({ "subdomain": "s" }),
            json!({ "setHostnameAsFQDN": true }),
            json!({}),
        ] {
            assert!(!refused(&spec, &"n".repeat(200)), "{spec}");
        }
    }
}
