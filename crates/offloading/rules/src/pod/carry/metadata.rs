//! Decides which labels and annotations of a local pod its remote pod has. Controllers, CNI plugins
//! and service meshes of the provider act on many of them, so only those travel that mean nothing
//! to others, and those that the provider's policy names.
//!
//! What a pod reads about itself does not depend on this, see `downward`.

use liqo_api::labels;
use serde_json::{Map, Value};

use crate::json::key_domain;
use crate::patterns::matches_any_pattern;
use crate::pod::carry::ProviderRules;
use crate::views::PodView;

/// Domain of annotations with values of a pod's first home, which a broker passes on.
pub(super) const PASSED_ON: &str = "passed-on";

/// Domains of labels that travel: Kubernetes recommends the first one to users, and its controllers
/// set the others. Labels without a domain belong to users, and travel, too.
const LABEL_DOMAINS: [&str; 4] = [
    "app.kubernetes.io",
    "apps.kubernetes.io",
    "batch.kubernetes.io",
    "statefulset.kubernetes.io",
];

/// The annotation that chooses a container's `AppArmor` profile in Kubernetes before 1.30. Pod
/// Security judges it.
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io";

/// A kubelet takes a pod with such an annotation for a static pod of its own.
const STATIC_POD: &str = "kubernetes.io/config.";

/// Whether a label of a local pod is also on its remote pod at a provider whose policy names none.
pub(crate) fn is_label_of_remote_pod(key: &str) -> bool {
    keeps_label(key, &ProviderRules::default())
}

pub(super) fn keeps_label(key: &str, rules: &ProviderRules) -> bool {
    !is_liqo_key(key)
        && (!key.contains('/')
            || LABEL_DOMAINS.contains(&key_domain(key))
            || matches_any_pattern(&rules.pod_labels, key))
}

pub(super) fn keeps_annotation(key: &str, rules: &ProviderRules) -> bool {
    !is_liqo_key(key)
        && !key.starts_with(STATIC_POD)
        && (is_always_kept(key) || matches_any_pattern(&rules.pod_annotations, key))
}

/// Whether every provider keeps this annotation.
pub(super) fn is_always_kept(key: &str) -> bool {
    key_domain(key) == APP_ARMOR
}

pub(super) fn is_liqo_key(key: &str) -> bool {
    key_domain(key).ends_with(labels::DOMAIN)
}

/// The entries of a map of texts whose keys pass the filter.
pub(super) fn kept_texts(
    entries: Option<&Map<String, Value>>,
    kept: impl Fn(&str) -> bool,
) -> Map<String, Value> {
    let entries = entries.into_iter().flatten();
    entries
        .filter(|(key, value)| kept(key) && value.is_string())
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// The labels and annotations of the carried pod that the remote pod has.
pub(super) fn travelling_metadata(
    carried: &Value,
    rules: &ProviderRules,
) -> (Map<String, Value>, Map<String, Value>) {
    let metadata = PodView::of(carried).metadata();
    (
        kept_texts(metadata.labels(), |key| keeps_label(key, rules)),
        kept_texts(metadata.annotations(), |key| keeps_annotation(key, rules)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_users_and_of_kubernetes_controllers_travel_and_those_of_other_programs_do_not() {
        for key in [
            "app",
            "pod-template-hash",
            "app.kubernetes.io/name",
            "apps.kubernetes.io/pod-index",
            "statefulset.kubernetes.io/pod-name",
            "batch.kubernetes.io/job-name",
        ] {
            assert!(is_label_of_remote_pod(key), "{key}");
        }
        for key in [
            "sidecar.istio.io/inject",
            "azure.workload.identity/use",
            "kueue.x-k8s.io/queue-name",
            "x.app.kubernetes.io/y",
            "topology.kubernetes.io/zone",
            "liqo.io/pool",
            "x.liqo.io/y",
            "/x",
        ] {
            assert!(!is_label_of_remote_pod(key), "{key}");
        }
    }

    #[test]
    fn no_annotation_asks_the_provider_for_anything_unless_its_policy_says_so() {
        let none = ProviderRules::default();
        for key in [
            "note",
            "k8s.v1.cni.cncf.io/networks",
            "k8s.ovn.org/routing-namespaces",
            "cni.projectcalico.org/ipAddrs",
            "sidecar.istio.io/inject",
            "prometheus.io/scrape",
            "vault.hashicorp.com/agent-inject",
            "kubernetes.io/config.mirror",
        ] {
            assert!(!keeps_annotation(key, &none), "{key}");
        }
        assert!(keeps_annotation(
            "container.apparmor.security.beta.kubernetes.io/web",
            &none
        ));
    }

    #[test]
    fn the_policy_may_name_more_but_neither_liqos_own_nor_those_of_static_pods() {
        let all = vec!["*".to_owned()];
        let rules = ProviderRules {
            pod_labels: all.clone(),
            pod_annotations: all,
            ..ProviderRules::default()
        };
        assert!(
            keeps_label("example.com/tier", &rules)
                && keeps_annotation("prometheus.io/scrape", &rules)
        );
        assert!(
            !keeps_label("liqo.io/consumer-id", &rules)
                && !keeps_annotation("liqo.io/travelled", &rules)
        );
        assert!(!keeps_annotation("kubernetes.io/config.source", &rules));
        let rules = ProviderRules {
            pod_labels: vec!["example.com/*".into()],
            ..ProviderRules::default()
        };
        assert!(
            keeps_label("example.com/tier", &rules) && !keeps_label("example.org/tier", &rules)
        );
    }
}
