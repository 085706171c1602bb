//! The leader updates the `MutatingWebhookConfiguration` when the offloaded namespaces or the
//! webhook's CA change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations,
    ServiceReference, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use liqo_api::{ClusterConfig, PodOffloadingStrategy, TetheringState, labels, may_be_offloaded};
use liqo_controller_runtime::Key;
use liqo_controller_runtime::{Cache, Context, Queue, Requeue};
use serde_json::json;

use super::commands::user_prefix;
use super::{
    COMMANDS_PATH, Offloading, PATH, SERVICE, TIMEOUT_SECONDS, WebhookError, certificate,
    watch_offloadings,
};

/// The configuration, which the installer creates empty.
pub(super) const NAME: &str = "liqo";
/// Interval between two checks whether somebody else changed it, or the CA changed. No watch
/// reports that: the shared cache stores only the namespaces of the entries, nobody watches the
/// Secret of the CA, and a certificate that is due causes no event. A replica that finds the Secret
/// missing creates a new CA, and pods are refused until the configuration contains it.
const CHECK_INTERVAL: Duration = Duration::from_mins(1);
/// The entries: name, strategy, and the failure policy.
const STRATEGIES: [(&str, PodOffloadingStrategy, &str); 2] = [
    ("remote.liqo.io", PodOffloadingStrategy::Remote, "Fail"),
    (
        "local-and-remote.liqo.io",
        PodOffloadingStrategy::LocalAndRemote,
        "Ignore",
    ),
];

/// The entry for namespaces that no other entry names yet: those whose label says that they are to
/// be offloaded and, while this cluster is tethered, all of users. It does not change with every
/// new namespace, so it sees the first pod. Without an answer no pod is created: nothing would
/// bring it to where it belongs. While this cluster is tethered, an admission policy refuses such
/// pods by itself.
const NEW_NAMESPACES: &str = "new-namespaces.liqo.io";

/// The entry for commands of consumers. Without an answer they are not limited: pods must stay
/// usable while no manager runs.
const COMMANDS: &str = "commands.liqo.io";

/// The offloaded namespaces that the live configuration names, by the name of the entry.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SelectedNamespaces(BTreeMap<String, BTreeSet<String>>);

impl SelectedNamespaces {
    /// Whether the webhook sees new pods of this namespace, if this strategy needs it.
    pub fn covers(&self, namespace: &str, strategy: PodOffloadingStrategy) -> bool {
        let entry = STRATEGIES.into_iter().find(|(_, of, _)| *of == strategy);
        entry.is_none_or(|(name, ..)| {
            self.0
                .get(name)
                .is_some_and(|namespaces| namespaces.contains(namespace))
        })
    }

    /// The namespaces that entered or left an entry.
    pub fn changed_since(&self, before: &Self) -> BTreeSet<String> {
        let entries = STRATEGIES.into_iter().map(|(entry, ..)| entry);
        entries
            .flat_map(|entry| &self.namespaces_of_entry(entry) ^ &before.namespaces_of_entry(entry))
            .collect()
    }

    fn namespaces_of_entry(&self, entry: &str) -> BTreeSet<String> {
        self.0.get(entry).cloned().unwrap_or_default()
    }

    pub(super) fn of_configuration(live: MutatingWebhookConfiguration) -> Self {
        let entries = live.webhooks.unwrap_or_default().into_iter();
        let namespaces = entries.map(|webhook| {
            let expressions = webhook
                .namespace_selector
                .and_then(|selector| selector.match_expressions)
                .unwrap_or_default();
            let namespaces = expressions
                .into_iter()
                .flat_map(|expression| expression.values.unwrap_or_default())
                .collect();
            (webhook.name, namespaces)
        });
        Self(namespaces.collect())
    }
}

/// Watches the live configuration: the only object of the cache, if it exists. Each change calls
/// `changed` with the configuration before and after it.
pub fn follow_configuration(
    context: &Context,
    mut changed: impl FnMut(&SelectedNamespaces, &SelectedNamespaces) + Send + 'static,
) -> Cache<SelectedNamespaces> {
    let only_ours = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
    let api = Api::<MutatingWebhookConfiguration>::all(context.client.clone());
    let none = SelectedNamespaces::default();
    Cache::watch(
        api,
        only_ours,
        context.stop.clone(),
        |live| Some(SelectedNamespaces::of_configuration(live)),
        move |_, old, new| {
            changed(
                old.map_or(&none, AsRef::as_ref),
                new.map_or(&none, AsRef::as_ref),
            );
        },
    )
}

/// The watched configuration.
pub fn selected_namespaces(cache: &Cache<SelectedNamespaces>) -> Arc<SelectedNamespaces> {
    cache.get(&Key::new("", NAME)).unwrap_or_default()
}

/// Updates the configuration until `context.stop`. Only the leader runs this.
pub async fn keep_configured(context: Context) -> Result<(), WebhookError> {
    let queue = Queue::new();
    let trigger = queue.clone();
    let offloadings = watch_offloadings(&context, move |_, _| trigger.add(NAME));
    if !offloadings.wait_until_synced().await {
        return Ok(());
    }
    queue.add(NAME);
    let (stop, mut config, trigger) = (context.stop.clone(), context.config.clone(), queue.clone());
    let follow_config = async {
        while config.changed().await.is_ok() {
            trigger.add(NAME);
        }
        std::future::pending::<()>().await;
    };
    let reconciling = queue.run("webhook-configuration", 1, stop, move |_| {
        let (context, offloadings) = (context.clone(), offloadings.clone());
        async move {
            write_configuration(
                &context.client,
                &context.namespace,
                &offloadings,
                (&context.config(), context.now()),
            )
            .await
            .map(|()| Requeue::After(CHECK_INTERVAL))
        }
    });
    tokio::select! {
        biased;
        () = reconciling => {}
        () = follow_config => {}
    }
    Ok(())
}

pub(super) async fn write_configuration(
    client: &Client,
    namespace: &str,
    offloadings: &Cache<Offloading>,
    (config, now): (&ClusterConfig, Timestamp),
) -> Result<(), WebhookError> {
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let material = certificate::load_or_create(&secrets, namespace, now).await?;
    let all = offloadings.all();
    let wanted = webhook_entries(
        namespace,
        &material.ca,
        &all.iter()
            .map(|(key, offloading)| (key, offloading.as_ref())),
        config,
    );
    let api = Api::<MutatingWebhookConfiguration>::all(client.clone());
    let live = api
        .get(NAME)
        .await
        .map_err(|source| WebhookError::Configure {
            step: "reading",
            source,
        })?;
    if live.webhooks.unwrap_or_default() == wanted {
        return Ok(());
    }
    tracing::info!(entries = wanted.len(), "configured the admission webhook");
    let patch = Patch::Merge(json!({"webhooks": wanted}));
    api.patch(NAME, &PatchParams::default(), &patch)
        .await
        .map_err(|source| WebhookError::Configure {
            step: "writing",
            source,
        })?;
    Ok(())
}

/// The entries of the configuration: one for each strategy that needs the webhook and that a
/// namespace has, one for new namespaces, and one for commands. All defaults of the API server are
/// explicit, so the result can be compared with the stored object.
pub(super) fn webhook_entries<'a>(
    system: &str,
    ca: &str,
    offloadings: &(impl Iterator<Item = (&'a Key, &'a Offloading)> + Clone),
    config: &ClusterConfig,
) -> Vec<MutatingWebhook> {
    let mut entries = Vec::new();
    for (name, strategy, failure_policy) in STRATEGIES {
        let of_strategy = offloadings
            .clone()
            .filter(|(_, offloading)| offloading.strategy == strategy);
        let namespaces: BTreeSet<&str> = of_strategy
            .map(|(key, _)| key.namespace.as_str())
            .filter(|name| may_be_offloaded(name, system))
            .collect();
        if !namespaces.is_empty() {
            let selected = vec![name_requirement("In", &namespaces)];
            entries.push(webhook_entry(name, failure_policy, system, ca, selected));
        }
    }
    let known: BTreeSet<&str> = offloadings
        .clone()
        .map(|(key, _)| key.namespace.as_str())
        .collect();
    entries.push(new_namespaces(system, ca, &known, config));
    entries.push(commands_entry(system, ca));
    entries
}

fn label_requirement<'a>(
    key: &str,
    operator: &str,
    values: impl IntoIterator<Item = &'a str>,
) -> LabelSelectorRequirement {
    let values = values.into_iter().map(str::to_owned).collect();
    LabelSelectorRequirement {
        key: key.into(),
        operator: operator.into(),
        values: Some(values),
    }
}

fn name_requirement(operator: &str, namespaces: &BTreeSet<&str>) -> LabelSelectorRequirement {
    label_requirement(
        "kubernetes.io/metadata.name",
        operator,
        namespaces.iter().copied(),
    )
}

fn match_condition(name: &str, expression: String) -> MatchCondition {
    MatchCondition {
        name: name.into(),
        expression,
    }
}

/// Namespaces whose `NamespaceOffloading` is known have their own entry, or need none.
fn new_namespaces(
    system: &str,
    ca: &str,
    known: &BTreeSet<&str>,
    config: &ClusterConfig,
) -> MutatingWebhook {
    let is_tethered = config.tethering().0 == TetheringState::Tethered;
    let may_be_new = if is_tethered {
        label_requirement(labels::MANAGED, "NotIn", ["true"])
    } else {
        label_requirement(labels::SCHEDULING_ENABLED, "In", ["true"])
    };
    let unknown = (!known.is_empty()).then(|| name_requirement("NotIn", known));
    let failure_policy = if is_tethered { "Ignore" } else { "Fail" };
    let namespaces = [may_be_new].into_iter().chain(unknown).collect();
    let mut entry = webhook_entry(NEW_NAMESPACES, failure_policy, system, ca, namespaces);
    let kept: &[String] = if is_tethered {
        &config.spec.tethering.system_namespaces
    } else {
        &[]
    };
    entry.match_conditions = Some(vec![
        // A pod that has a node cannot wait for a strategy.
        match_condition("unbound", "!has(object.spec.nodeName)".into()),
        // Whoever labels the namespace of the manager or of the cluster's own pods must not keep
        // them from starting.
        match_condition("of-user", namespace_of_user(system, kept)),
    ]);
    entry
}

/// The pods of other namespaces do not wait for the webhook: those of the cluster itself and of
/// Liqo, and those that the settings of the working mode list.
fn namespace_of_user(system: &str, kept: &[String]) -> String {
    let (prefixes, names): (Vec<&str>, Vec<&str>) = kept
        .iter()
        .map(String::as_str)
        .partition(|pattern| pattern.ends_with('*'));
    format!(
        "!(request.namespace in [{}]) && ![{}].exists(prefix, request.namespace.startsWith(prefix))",
        quoted_list([vec!["default", system], names].concat()),
        quoted_list([vec!["kube-", "openshift-", "liqo"], prefixes].concat()),
    )
}

/// The elements of a CEL list, without the `*` at the end of a prefix.
fn quoted_list(names: Vec<&str>) -> String {
    names
        .into_iter()
        .map(|name| format!("'{}'", name.trim_end_matches('*')))
        .collect::<Vec<_>>()
        .join(", ")
}

fn webhook_entry(
    name: &str,
    failure_policy: &str,
    system: &str,
    ca: &str,
    namespaces: Vec<LabelSelectorRequirement>,
) -> MutatingWebhook {
    MutatingWebhook {
        failure_policy: Some(failure_policy.into()),
        namespace_selector: Some(LabelSelector {
            match_expressions: Some(namespaces),
            match_labels: None,
        }),
        // Webhooks of others may add volumes or affinity after this one.
        reinvocation_policy: Some("IfNeeded".into()),
        ..default_entry(name, "CREATE", &["pods"], &client_config(system, ca, PATH))
    }
}

/// Only the commands of consumers come to the webhook, and nobody else's wait for it.
fn commands_entry(system: &str, ca: &str) -> MutatingWebhook {
    let expression = format!(
        "request.userInfo.username.startsWith('{}')",
        user_prefix(system)
    );
    MutatingWebhook {
        match_conditions: Some(vec![match_condition("consumer", expression)]),
        ..default_entry(
            COMMANDS,
            "CONNECT",
            &["pods/exec", "pods/attach", "pods/portforward"],
            &client_config(system, ca, COMMANDS_PATH),
        )
    }
}

fn client_config(system: &str, ca: &str, path: &str) -> WebhookClientConfig {
    let service = ServiceReference {
        namespace: system.into(),
        name: SERVICE.into(),
        path: Some(path.into()),
        port: Some(443),
    };
    WebhookClientConfig {
        ca_bundle: Some(ByteString(ca.as_bytes().to_vec())),
        service: Some(service),
        url: None,
    }
}

/// An entry for one operation on resources of the core group. Unless the caller changes it: in all
/// namespaces, and without an answer the operation goes on.
fn default_entry(
    name: &str,
    operation: &str,
    resources: &[&str],
    client: &WebhookClientConfig,
) -> MutatingWebhook {
    MutatingWebhook {
        name: name.into(),
        admission_review_versions: vec!["v1".into()],
        client_config: client.clone(),
        failure_policy: Some("Ignore".into()),
        match_conditions: None,
        match_policy: Some("Equivalent".into()),
        namespace_selector: Some(LabelSelector::default()),
        object_selector: Some(LabelSelector::default()),
        reinvocation_policy: Some("Never".into()),
        rules: Some(vec![RuleWithOperations {
            api_groups: Some(vec![String::new()]),
            api_versions: Some(vec!["v1".to_owned()]),
            operations: Some(vec![operation.to_owned()]),
            resources: Some(
                resources
                    .iter()
                    .map(|&resource| resource.to_owned())
                    .collect(),
            ),
            scope: Some("Namespaced".into()),
        }]),
        side_effects: "None".into(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
    }
}
