//! `--set key=value` and `--values FILE` of `liqoctl install`: the keys, their values, and the
//! defaults. [`table`] has all keys.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::Node;
use liqo_api::{
    ClusterConfig, ClusterId, DiscoverySettings, NetworkSettings, PeeringPolicy, PeeringPolicySpec,
    PeeringTimes, PluginGeneration, PluginSource, Source,
};

use crate::replicas;

mod discovery;
mod files;
mod images;
mod network;
pub mod table;

use table::{RefusalCondition, SettingClass, ValueConversion};

pub use discovery::DiscoveryChanges;
pub use images::ImageParts;
pub use network::NetworkChanges;

/// All settings. Nothing means: unchanged, or the default at the first installation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstallSettings {
    /// `discovery.config.clusterName`.
    pub cluster_name: Option<String>,
    /// `discovery.config.clusterLabels`.
    pub cluster_labels: Option<BTreeMap<String, String>>,
    /// `apiServer.address`; empty to find it out.
    pub api_server_address: Option<String>,
    /// `apiServer.ca` as PEM; empty to find it out.
    pub api_server_ca: Option<String>,
    /// `authentication.address`; empty to find it out.
    pub authentication_address: Option<String>,
    /// `controllerManager.config.resourceSharingPercentage`.
    pub percentage: Option<u8>,
    /// `controllerManager.config.offerUpdateThresholdPercentage`.
    pub threshold: Option<u8>,
    /// `controllerManager.config.resourcePluginAddress`; empty for none.
    pub plugin_address: Option<String>,
    /// `controllerManager.config.resourcePluginGeneration`.
    pub plugin_generation: Option<PluginGeneration>,
    /// `controllerManager.replicas`.
    pub replicas: Option<ReplicaSetting>,
    /// `controllerManager.avoidNodes`.
    pub avoid_nodes: Option<BTreeMap<String, String>>,
    /// `controllerManager.image`.
    pub image: Option<String>,
    /// `fabric.image`.
    pub fabric_image: Option<String>,
    /// `fabric.keyDirectory`; empty for the default.
    pub key_directory: Option<String>,
    /// `lendWithoutNetworkPolicies`.
    pub lend_without_network_policies: Option<bool>,
    /// `network.*`.
    pub network: NetworkChanges,
    /// `discovery.lan.*` and `discovery.autoPeering`.
    pub discovery: DiscoveryChanges,
    /// `peering.credentialLifetimeSeconds`.
    pub credential_lifetime_seconds: Option<u32>,
    /// Parts of the names of images, such as `controllerManager.image.tag`.
    pub images: ImageParts,
    /// Notes for the user about the settings.
    pub notes: Vec<String>,
}

/// How many replicas of the controller manager a user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaSetting {
    Count(u16),
    /// As many as fit the nodes.
    ByNodes,
}

/// Why a setting is not valid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingError {
    #[error("{0}: it must be key=value")]
    Form(String),
    #[error("{key}: unknown key{}", hint(key))]
    Key { key: String },
    /// The value does not fit.
    #[error("{key}={value}: {problem}")]
    Value {
        key: &'static str,
        value: String,
        /// The fault of the value.
        problem: String,
    },
    /// Liqo cannot do what the key of another version asks for.
    #[error("{0}")]
    Refused(String),
    #[error("the values file cannot be read: {0}")]
    File(String),
    #[error("{key}: {problem}")]
    Shape { key: String, problem: &'static str },
    /// `--set`, or a file.
    #[error("{origin} {error}")]
    In {
        origin: String,
        error: Box<SettingError>,
    },
}

impl SettingError {
    fn with_origin(self, origin: &str) -> Self {
        Self::In {
            origin: origin.to_owned(),
            error: Box::new(self),
        }
    }
}

const CLUSTER_NAME: &str = "discovery.config.clusterName";
const CLUSTER_LABELS: &str = "discovery.config.clusterLabels";
const API_SERVER_ADDRESS: &str = "apiServer.address";
const API_SERVER_CA: &str = "apiServer.ca";
const AUTHENTICATION_ADDRESS: &str = "authentication.address";
const PERCENTAGE: &str = "controllerManager.config.resourceSharingPercentage";
const THRESHOLD: &str = "controllerManager.config.offerUpdateThresholdPercentage";
const PLUGIN_ADDRESS: &str = "controllerManager.config.resourcePluginAddress";
const PLUGIN_GENERATION: &str = "controllerManager.config.resourcePluginGeneration";
const REPLICAS: &str = "controllerManager.replicas";
const AVOID_NODES: &str = "controllerManager.avoidNodes";
const IMAGE: &str = "controllerManager.image";
const FABRIC_IMAGE: &str = "fabric.image";
const KEY_DIRECTORY: &str = "fabric.keyDirectory";
const CREDENTIAL_LIFETIME: &str = "peering.credentialLifetimeSeconds";

const LEND_WITHOUT: &str = liqo_api::isolation::LEND_WITHOUT_NETWORK_POLICIES;

const IMAGE_NAME: &str = "localhost/liqo/controller-manager";
const FABRIC_IMAGE_NAME: &str = "localhost/liqo/fabric";
/// Where a node stores the key of its gateway, if nobody sets it.
const DEFAULT_KEY_DIRECTORY: &str = "/var/lib/liqo";

/// The keys that `--set` takes.
pub fn setting_keys() -> Vec<&'static str> {
    table::rows()
        .filter(|row| row.is_for_install())
        .map(|row| row.key)
        .collect()
}

/// The key that the user probably meant; all keys if none is near.
fn hint(key: &str) -> String {
    match suggestion(key) {
        Some(known) => format!("; did you mean {known}? `liqoctl install --help` lists all keys"),
        None => format!("; the keys are {}", setting_keys().join(", ")),
    }
}

/// The key that the user probably meant: all of it, or its last part, differs only in a few
/// letters.
fn suggestion(key: &str) -> Option<&'static str> {
    let key = key.to_ascii_lowercase();
    let known = table::rows()
        .filter(|row| row.is_in_chart() || row.is_for_install())
        .map(|row| row.key);
    let distances = known.map(|known| {
        let known_lower = known.to_ascii_lowercase();
        let whole = strsim::levenshtein(&known_lower, &key);
        let last = strsim::levenshtein(last_part(&known_lower), last_part(&key));
        (whole.min(last), whole, known)
    });
    let nearest = distances
        .min()
        .filter(|(off, ..)| off * 4 <= last_part(&key).len());
    nearest.map(|(.., known)| known)
}

fn last_part(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or_default()
}

/// One value that a user gave.
struct SettingInput {
    /// `--set`, or the name of a file.
    origin: String,
    key: String,
    value: String,
}

impl InstallSettings {
    /// Reads `key=value` arguments. The last value of a key counts.
    pub fn parse<S: AsRef<str>>(arguments: &[S]) -> Result<Self, SettingError> {
        Self::from_files_and_arguments(&[], arguments)
    }

    /// Reads values files, and then `key=value` arguments. The last value of a key counts. A key's
    /// own name takes precedence over its name in the Go implementation.
    pub fn from_files_and_arguments<S: AsRef<str>>(
        files: &[PathBuf],
        arguments: &[S],
    ) -> Result<Self, SettingError> {
        let mut inputs = Vec::new();
        for file in files {
            let origin = format!("{}:", file.display());
            inputs.extend(
                files::read_values_file(file, &origin)
                    .map_err(|error| error.with_origin(&origin))?,
            );
        }
        for argument in arguments {
            let argument = argument.as_ref();
            let (key, value) = argument
                .split_once('=')
                .ok_or_else(|| SettingError::Form(argument.to_owned()).with_origin("--set"))?;
            inputs.push(SettingInput {
                origin: "--set".into(),
                key: key.trim().to_owned(),
                value: value.trim().to_owned(),
            });
        }
        Self::from_inputs(inputs)
    }

    fn from_inputs(inputs: Vec<SettingInput>) -> Result<Self, SettingError> {
        let (mapped, own): (Vec<SettingInput>, Vec<SettingInput>) =
            inputs.into_iter().partition(|input| {
                table::find(&input.key)
                    .is_some_and(|row| matches!(row.class, SettingClass::Mapped(..)))
            });
        let mut settings = Self::default();
        for input in mapped.iter().chain(&own) {
            settings
                .apply_key(&input.key, &input.value)
                .map_err(|error| error.with_origin(&input.origin))?;
        }
        settings.image = settings.image.or_else(|| settings.images.manager());
        settings.fabric_image = settings.fabric_image.or_else(|| settings.images.fabric());
        Ok(settings)
    }

    /// Does with a key what the table says.
    fn apply_key(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        let row = table::find(key).ok_or_else(|| SettingError::Key {
            key: key.to_owned(),
        })?;
        let is_false = value == "false";
        match row.class {
            SettingClass::Setting | SettingClass::CommandLine => {
                let set = self.set(key, value);
                let is_known = set.map_err(|problem| SettingError::Value {
                    key: row.key,
                    value: value.to_owned(),
                    problem,
                })?;
                if !is_known {
                    return Err(SettingError::Key {
                        key: key.to_owned(),
                    });
                }
            }
            SettingClass::Chart if value.is_empty() => {}
            SettingClass::Chart => self.add_note(format!(
                "{key} is a value of the Helm chart alone: `liqoctl install` ignores it"
            )),
            SettingClass::Refused(when) => {
                let is_refused = if when == RefusalCondition::False {
                    is_false
                } else {
                    !value.is_empty() && !is_false
                };
                if is_refused {
                    return Err(SettingError::Refused(row.note_for_user()));
                }
            }
            SettingClass::Noted => self.add_note(row.note_for_user()),
            SettingClass::Mapped(target, convert) => {
                let value = match convert {
                    ValueConversion::Same | ValueConversion::ToList => {
                        Some(value).filter(|value| !value.is_empty())
                    }
                    ValueConversion::IfTrue => Some(value).filter(|value| *value == "true"),
                    ValueConversion::IfFalse(other) => is_false.then_some(other),
                };
                if let Some(value) = value {
                    self.add_note(row.note_for_user());
                    return self.apply_key(target, value);
                }
            }
        }
        Ok(())
    }

    fn add_note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Takes a key, if it is a setting. An error says what is wrong with the value.
    fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match key {
            CLUSTER_NAME => self.cluster_name = Some(cluster_name(value)?),
            CLUSTER_LABELS => self.cluster_labels = Some(parse_labels(value)?),
            API_SERVER_ADDRESS => self.api_server_address = Some(parse_address_url(value)?),
            API_SERVER_CA => self.api_server_ca = Some(parse_certificates(value)?),
            AUTHENTICATION_ADDRESS => self.authentication_address = Some(parse_address_url(value)?),
            PERCENTAGE => self.percentage = Some(parse_percentage(value)?),
            THRESHOLD => self.threshold = Some(parse_percentage(value)?),
            PLUGIN_ADDRESS => self.plugin_address = Some(plugin_address(value)?),
            PLUGIN_GENERATION => self.plugin_generation = Some(plugin_generation(value)?),
            REPLICAS => self.replicas = Some(parse_replicas(value)?),
            AVOID_NODES => self.avoid_nodes = Some(parse_labels(value)?),
            IMAGE => self.image = Some(parse_image(value)?),
            FABRIC_IMAGE => self.fabric_image = Some(parse_image(value)?),
            KEY_DIRECTORY => self.key_directory = Some(parse_directory(value)?),
            LEND_WITHOUT => {
                self.lend_without_network_policies = Some(network::parse_boolean(value)?);
            }
            CREDENTIAL_LIFETIME => {
                self.credential_lifetime_seconds = Some(credential_lifetime(value)?);
            }
            _ => {
                return Ok(self.images.set(key, value)
                    || self.discovery.set(key, value)?
                    || self.network.set(key, value)?);
            }
        }
        Ok(true)
    }
}

impl InstallSettings {
    /// The default policy with the settings applied.
    fn policy_with_settings(&self, present: PeeringPolicySpec) -> PeeringPolicySpec {
        let mut policy = present;
        let provide = &mut policy.provide;
        provide.percentage = self.percentage.unwrap_or(provide.percentage);
        provide.offer_update_threshold_percentage =
            self.threshold.or(provide.offer_update_threshold_percentage);
        match self.plugin_address.as_deref() {
            None => {}
            // Removes only the plugin; this setting does not touch another source.
            Some("") => provide.source.plugin = None,
            Some(address) => {
                let present = provide.source.plugin.as_ref();
                let (generation, overcommit) = present
                    .map(|plugin| (plugin.generation, plugin.overcommit))
                    .unwrap_or_default();
                let plugin = PluginSource {
                    address: address.to_owned(),
                    generation,
                    tls: None,
                    overcommit,
                };
                provide.source = Source {
                    plugin: Some(plugin),
                    ..Source::default()
                };
            }
        }
        if let (Some(plugin), Some(generation)) =
            (&mut provide.source.plugin, self.plugin_generation)
        {
            plugin.generation = generation;
        }
        policy
    }
}

/// The complete values of an installation.
#[derive(Clone, Debug, PartialEq)]
pub struct InstallValues {
    pub cluster_name: String,
    pub cluster_labels: BTreeMap<String, String>,
    /// Address at which peers reach the API server.
    pub api_server_address: Option<String>,
    pub api_server_ca: Option<String>,
    /// Address at which peers reach the auth endpoint.
    pub authentication_address: Option<String>,
    /// The default policy.
    pub policy: PeeringPolicySpec,
    /// Replicas of the controller manager.
    pub replicas: u16,
    /// Liqo runs on no node with one of these labels.
    pub avoid_nodes: BTreeMap<String, String>,
    pub image: String,
    /// The image of the program on each node.
    pub fabric_image: String,
    /// Directory of each node for the key of its gateway.
    pub key_directory: String,
    /// Whether it lends although the pod network does not enforce `NetworkPolicies`.
    pub lend_without_network_policies: bool,
    /// The network to other clusters.
    pub network: NetworkSettings,
    /// How clusters find each other.
    pub discovery: DiscoverySettings,
    /// The policy for peers with which peerings are automatic.
    pub auto_peering: Option<PeeringPolicySpec>,
    /// Lifetime of the credentials of consumers, in seconds; `None` for the default, if no other
    /// was ever set.
    pub credential_lifetime_seconds: Option<u32>,
}

/// The present installation.
#[derive(Clone, Debug, Default)]
pub struct InstalledState {
    pub config: Option<ClusterConfig>,
    /// The default policy.
    pub policy: Option<PeeringPolicy>,
    /// The policy for peers with which peerings are automatic.
    pub auto_peering: Option<PeeringPolicy>,
    /// Replicas of the controller manager.
    pub replicas: Option<u16>,
    pub image: Option<String>,
    /// The image of the program on each node.
    pub fabric_image: Option<String>,
    /// Directory of each node for the key of its gateway.
    pub key_directory: Option<String>,
    /// Labels of the nodes that it avoids.
    pub avoid_nodes: BTreeMap<String, String>,
    /// The nodes of the cluster.
    pub nodes: Vec<Node>,
}

/// The image of this program's version.
pub fn default_image() -> String {
    format!("{IMAGE_NAME}:{}", env!("CARGO_PKG_VERSION"))
}

/// The image of the program on each node, of this program's version.
pub fn default_fabric_image() -> String {
    format!("{FABRIC_IMAGE_NAME}:{}", env!("CARGO_PKG_VERSION"))
}

/// Whether an image is the default one of some version, which an upgrade replaces, and not one that
/// a user chose.
fn is_of_a_version(name: &str, image: &str) -> bool {
    let tag = image
        .strip_prefix(name)
        .and_then(|rest| rest.strip_prefix(':'));
    tag.is_some_and(|tag| {
        tag.split('.').count() == 3
            && tag
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b'.')
    })
}

impl InstallValues {
    /// Settings take precedence over the installed values, and these over defaults. `context` is
    /// the cluster's name in the kubeconfig.
    pub fn resolve(settings: &InstallSettings, present: &InstalledState, context: &str) -> Self {
        let config = present
            .config
            .as_ref()
            .map(|config| config.spec.clone())
            .unwrap_or_default();
        let kept_name = Some(config.cluster_name).filter(|name| !name.is_empty());
        let lifetime = config.peering.credential_lifetime_seconds;
        let kept_lifetime = Some(lifetime)
            .filter(|kept| *kept != PeeringTimes::default().credential_lifetime_seconds);
        let policy = present
            .policy
            .as_ref()
            .map(|policy| policy.spec.clone())
            .unwrap_or_default();
        let avoid_nodes = settings
            .avoid_nodes
            .clone()
            .unwrap_or_else(|| present.avoid_nodes.clone());
        let by_nodes =
            replicas::default_replicas(replicas::usable_nodes(&present.nodes, &avoid_nodes));
        let replicas = match settings.replicas {
            Some(ReplicaSetting::Count(count)) => count,
            Some(ReplicaSetting::ByNodes) => by_nodes,
            // A user who sets a number has a reason. A node that is away for an hour is none.
            None => present.replicas.unwrap_or(by_nodes),
        };
        Self {
            cluster_name: settings
                .cluster_name
                .clone()
                .or(kept_name)
                .unwrap_or_else(|| name_from(context)),
            cluster_labels: settings
                .cluster_labels
                .clone()
                .unwrap_or(config.cluster_labels),
            api_server_address: set_or_kept(
                settings.api_server_address.as_ref(),
                config.api_server.address,
            ),
            api_server_ca: set_or_kept(settings.api_server_ca.as_ref(), config.api_server.ca),
            authentication_address: set_or_kept(
                settings.authentication_address.as_ref(),
                config.authentication.address,
            ),
            policy: settings.policy_with_settings(policy),
            replicas,
            avoid_nodes,
            image: settings
                .image
                .clone()
                .or_else(|| image_of_user(IMAGE_NAME, present.image.as_ref()))
                .unwrap_or_else(default_image),
            fabric_image: (settings.fabric_image.clone())
                .or_else(|| image_of_user(FABRIC_IMAGE_NAME, present.fabric_image.as_ref()))
                .unwrap_or_else(default_fabric_image),
            key_directory: set_or_kept(
                settings.key_directory.as_ref(),
                present.key_directory.clone(),
            )
            .unwrap_or_else(|| DEFAULT_KEY_DIRECTORY.to_owned()),
            lend_without_network_policies: (settings.lend_without_network_policies)
                .unwrap_or(config.lend_without_network_policies),
            network: settings.network.applied_to(config.network),
            discovery: settings.discovery.applied_to(config.discovery),
            auto_peering: settings.discovery.policy_with_settings(
                present
                    .auto_peering
                    .as_ref()
                    .map(|policy| policy.spec.clone()),
            ),
            credential_lifetime_seconds: settings.credential_lifetime_seconds.or(kept_lifetime),
        }
    }
}

/// The value that is set, or else the kept one; nothing if it is empty.
fn set_or_kept(set: Option<&String>, kept: Option<String>) -> Option<String> {
    set.cloned().or(kept).filter(|text| !text.is_empty())
}

/// The installed image, if a user chose it.
fn image_of_user(name: &str, present: Option<&String>) -> Option<String> {
    present
        .filter(|image| !is_of_a_version(name, image))
        .cloned()
}

/// Makes a valid cluster name from the name in the kubeconfig.
pub fn name_from(context: &str) -> String {
    let mut name = String::new();
    for character in context
        .chars()
        .map(|character| character.to_ascii_lowercase())
    {
        if character.is_ascii_lowercase() || character.is_ascii_digit() {
            name.push(character);
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    name.truncate(63);
    let name = name.trim_end_matches('-');
    if name.is_empty() {
        return "cluster".to_owned();
    }
    // Peers refuse a name that has the form of a cluster ID.
    if name.parse::<ClusterId>().is_ok() {
        format!("cluster-{name}")
    } else {
        name.to_owned()
    }
}

/// Seconds; empty for the default.
fn credential_lifetime(text: &str) -> Result<u32, String> {
    if text.is_empty() {
        return Ok(PeeringTimes::default().credential_lifetime_seconds);
    }
    let (min, max) = (
        PeeringTimes::MIN_CREDENTIAL_LIFETIME_SECONDS,
        PeeringTimes::MAX_CREDENTIAL_LIFETIME_SECONDS,
    );
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds| (min..=max).contains(seconds));
    seconds.ok_or_else(|| format!("it must be a number of seconds from {min} to {max}"))
}

/// `host:port` of a plugin; empty for none.
fn plugin_address(text: &str) -> Result<String, String> {
    let parts = text
        .rsplit_once(':')
        .map(|(host, port)| (host, port.parse::<u16>()));
    match parts {
        None if text.is_empty() => Ok(String::new()),
        Some((host, Ok(1..))) if !host.is_empty() && !host.contains(['/', ':', ' ']) => {
            Ok(text.to_owned())
        }
        _ => Err(
            "it must be host:port, for example liqo-fixed-resources-plugin.liqo:6001".to_owned(),
        ),
    }
}

fn plugin_generation(text: &str) -> Result<PluginGeneration, String> {
    match text.to_ascii_lowercase().as_str() {
        "p1" => Ok(PluginGeneration::P1),
        "p2" => Ok(PluginGeneration::P2),
        "p3" => Ok(PluginGeneration::P3),
        _ => Err("it must be p1, p2 or p3".to_owned()),
    }
}

pub fn cluster_name(text: &str) -> Result<String, String> {
    let good = (1..=63).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-');
    if text.parse::<ClusterId>().is_ok() {
        return Err(format!(
            "a cluster name must not look like a cluster ID (for example, choose {})",
            name_from(text)
        ));
    }
    if good {
        return Ok(text.to_owned());
    }
    Err(format!(
        "a cluster name has 1 to 63 lower-case letters, digits and dashes, with no dash at either end (for example {})",
        name_from(text)
    ))
}

/// Reads `a=b,c=d`.
pub fn parse_labels(text: &str) -> Result<BTreeMap<String, String>, String> {
    let text = text.trim_start_matches('{').trim_end_matches('}');
    text.split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
        .map(parse_label)
        .collect()
}

fn parse_label(pair: &str) -> Result<(String, String), String> {
    pair.split_once('=')
        .filter(|(key, value)| is_label_key(key) && (value.is_empty() || is_label_part(value)))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .ok_or_else(|| format!("{pair:?} is not a label; labels are given as a=b,c=d"))
}

fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key.rsplit_once('/').unzip();
    let prefix_good = prefix.is_none_or(|prefix| {
        (1..=253).contains(&prefix.len()) && prefix.bytes().all(is_label_byte)
    });
    prefix_good && is_label_part(name.unwrap_or(key))
}

/// Whether this can be the name of a label, or its value.
fn is_label_part(text: &str) -> bool {
    let mut ends = text.bytes().next().into_iter().chain(text.bytes().last());
    (1..=63).contains(&text.len())
        && text.bytes().all(is_label_byte)
        && ends.all(|byte| byte.is_ascii_alphanumeric())
}

fn is_label_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

const ADDRESS_URL_FORM: &str = "it looks like https://203.0.113.5:6443";

/// The URL of an address that other clusters can call. Empty stays empty.
pub fn parse_address_url(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Ok(String::new());
    }
    let rest = match text.split_once("://") {
        Some(("https", rest)) => rest,
        Some(_) => return Err(ADDRESS_URL_FORM.to_owned()),
        None => text,
    };
    let rest = rest.trim_end_matches('/');
    if rest.is_empty() || rest.contains(['/', '@', '?', '#', ' ']) {
        return Err(ADDRESS_URL_FORM.to_owned());
    }
    if means_this_machine(host_of_url(rest)) {
        return Err("only the machine itself can reach this address".to_owned());
    }
    Ok(format!("https://{rest}"))
}

/// The host of a URL, or of host and port.
pub fn host_of_url(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    }
}

/// Whether a host means the machine that uses it, for example `localhost`.
pub fn means_this_machine(host: &str) -> bool {
    if let Ok(address) = host.parse::<IpAddr>() {
        let address = address.to_canonical();
        return address.is_loopback() || address.is_unspecified();
    }
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

/// PEM, or a file with it.
fn parse_certificates(text: &str) -> Result<String, String> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    if text.is_empty() || text.contains(BEGIN) {
        return Ok(text.to_owned());
    }
    let pem = std::fs::read_to_string(Path::new(text)).map_err(|error| {
        format!("neither certificates in PEM nor a file that can be read ({error})")
    })?;
    if pem.contains(BEGIN) {
        Ok(pem)
    } else {
        Err(format!(
            "the file contains no certificate in PEM (a line {BEGIN:?})"
        ))
    }
}

fn parse_percentage(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    number
        .parse()
        .ok()
        .filter(|percent| *percent <= 100)
        .ok_or_else(|| "it must be a whole number from 0 to 100".to_owned())
}

fn parse_replicas(text: &str) -> Result<ReplicaSetting, String> {
    if text.is_empty() {
        return Ok(ReplicaSetting::ByNodes);
    }
    let count = text.parse().ok().filter(|count| (1..=9).contains(count));
    count.map(ReplicaSetting::Count).ok_or_else(|| {
        "it must be a whole number from 1 to 9, or empty to follow the nodes".to_owned()
    })
}

fn parse_image(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err("it must be the name of an image".to_owned());
    }
    Ok(text.to_owned())
}

/// A directory of nodes; empty for the default.
fn parse_directory(text: &str) -> Result<String, String> {
    let is_plain =
        text.starts_with('/') && text != "/" && !text.split('/').any(|part| part == "..");
    if text.is_empty() || is_plain {
        return Ok(text.to_owned());
    }
    Err(format!(
        "it must be the absolute path of a directory on the nodes, for example {DEFAULT_KEY_DIRECTORY}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(argument: &str) -> String {
        InstallSettings::parse(&[argument]).unwrap_err().to_string()
    }

    #[test]
    fn every_key_is_understood() {
        let settings = InstallSettings::parse(&[
            "discovery.config.clusterName=rome",
            "discovery.config.clusterLabels=region=eu, liqo.io/provider=kind",
            "apiServer.address=203.0.113.5:6443",
            "apiServer.ca=-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----",
            "authentication.address=https://203.0.113.5:30443/",
            "controllerManager.config.resourceSharingPercentage=70",
            "controllerManager.config.offerUpdateThresholdPercentage=0",
            "controllerManager.config.resourcePluginAddress=liqo-fixed-resources-plugin.liqo:6001",
            "controllerManager.config.resourcePluginGeneration=P2",
            "controllerManager.replicas=2",
            "controllerManager.avoidNodes=kwok.x-k8s.io/node=fake",
            "controllerManager.image=localhost/x:1",
            "fabric.image=localhost/y:1",
            "fabric.keyDirectory=/opt/liqo",
            "virtualKubelet.imageName=somebody/virtual-kubelet:latest",
            "virtualKubelet.extra.args=--remote-ipam=server=liqo-network-manager.liqo-broker-b9d3d5.svc.cluster.local",
            "lendWithoutNetworkPolicies=true",
        ])
        .unwrap();
        assert_eq!(settings.cluster_name.as_deref(), Some("rome"));
        let labels = settings.cluster_labels.clone().unwrap();
        assert_eq!(
            (
                labels["region"].as_str(),
                labels["liqo.io/provider"].as_str()
            ),
            ("eu", "kind")
        );
        assert_eq!(
            settings.api_server_address.as_deref(),
            Some("https://203.0.113.5:6443")
        );
        assert_eq!(
            settings.authentication_address.as_deref(),
            Some("https://203.0.113.5:30443")
        );
        assert_eq!(
            (settings.percentage, settings.threshold, settings.replicas),
            (Some(70), Some(0), Some(ReplicaSetting::Count(2)))
        );
        assert_eq!(
            settings.avoid_nodes.clone().unwrap()["kwok.x-k8s.io/node"],
            "fake"
        );
        assert_eq!(settings.notes.len(), 2);
        assert!(
            settings.notes.iter().all(|note| note.contains("no effect")),
            "{:?}",
            settings.notes
        );
        assert_eq!(settings.lend_without_network_policies, Some(true));
        assert_eq!(settings.key_directory.as_deref(), Some("/opt/liqo"));
        let plugin = settings
            .policy_with_settings(PeeringPolicySpec::default())
            .provide
            .source
            .plugin
            .unwrap();
        assert_eq!(plugin.address, "liqo-fixed-resources-plugin.liqo:6001");
        assert_eq!(plugin.generation, PluginGeneration::P2);
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_keys_that_exist() {
        let text = refused("clusterName=rome");
        assert!(
            text.contains("did you mean discovery.config.clusterName?"),
            "{text}"
        );
        for (typed, meant) in [
            (
                "controllerManager.config.resourcePluginAdress",
                "controllerManager.config.resourcePluginAddress",
            ),
            ("controllermanager.replica", "controllerManager.replicas"),
            ("discovery.clustername", "discovery.config.clusterName"),
            (
                "controllerManager.config.resourceSharingPercent",
                "controllerManager.config.resourceSharingPercentage",
            ),
        ] {
            let text = refused(&format!("{typed}=x"));
            assert!(text.contains(&format!("did you mean {meant}?")), "{text}");
        }
        let text = refused("a.b=c");
        assert!(
            text.contains("controllerManager.replicas") && !text.contains("did you mean"),
            "{text}"
        );
        assert!(refused("discovery.config.clusterName").contains("key=value"));
    }

    #[test]
    fn values_that_cannot_work_are_refused_with_what_would() {
        for (argument, hint) in [
            ("discovery.config.clusterName=Rome_1", "rome-1"),
            ("discovery.config.clusterLabels=region", "a=b,c=d"),
            ("discovery.config.clusterLabels=-a=b", "a=b,c=d"),
            ("apiServer.address=http://203.0.113.5", "https://"),
            (
                "apiServer.address=https://127.0.0.1:6443",
                "only the machine itself",
            ),
            (
                "authentication.address=localhost:30443",
                "only the machine itself",
            ),
            (
                "authentication.address=https://[::1]:30443",
                "only the machine itself",
            ),
            ("apiServer.ca=/does/not/exist.pem", "neither"),
            (
                "controllerManager.config.resourceSharingPercentage=101",
                "0 to 100",
            ),
            ("controllerManager.replicas=0", "1 to 9"),
            ("fabric.keyDirectory=keys", "absolute path"),
            ("fabric.keyDirectory=/", "absolute path"),
            ("fabric.keyDirectory=/opt/../etc", "absolute path"),
            (
                "controllerManager.config.resourcePluginAddress=http://plugin:6001",
                "host:port",
            ),
            (
                "controllerManager.config.resourcePluginAddress=plugin:0",
                "host:port",
            ),
            (
                "controllerManager.config.resourcePluginGeneration=4",
                "p1, p2 or p3",
            ),
        ] {
            let text = refused(argument);
            assert!(text.contains(hint), "{argument}: {text}");
        }
    }

    #[test]
    fn a_name_is_made_of_what_the_kubeconfig_calls_the_cluster() {
        for (context, name) in [
            ("kind-rome", "kind-rome"),
            ("kubernetes-admin@kubernetes", "kubernetes-admin-kubernetes"),
            (
                "arn:aws:eks:eu-west-1:1:cluster/Rome",
                "arn-aws-eks-eu-west-1-1-cluster-rome",
            ),
            ("--", "cluster"),
        ] {
            assert_eq!(name_from(context), name);
            assert!(cluster_name(&name_from(context)).is_ok());
        }
        assert!(cluster_name(&name_from(&"x.".repeat(99))).is_ok());
        let id = "x".repeat(32);
        assert!(
            cluster_name(&id)
                .unwrap_err()
                .contains("must not look like a cluster ID")
        );
        assert_eq!(cluster_name(&name_from(&id)), Ok(format!("cluster-{id}")));
    }

    #[test]
    fn what_was_set_once_stays_until_something_else_is_set() {
        let first = InstallValues::resolve(
            &InstallSettings::default(),
            &InstalledState::default(),
            "kind-rome",
        );
        assert_eq!(
            (
                first.cluster_name.as_str(),
                first.policy.provide.percentage,
                first.replicas
            ),
            ("kind-rome", 90, 1)
        );

        let mut config = ClusterConfig::new(
            "liqo",
            liqo_api::ClusterConfigSpec {
                cluster_name: "rome".into(),
                ..Default::default()
            },
        );
        config.spec.authentication.address = Some("https://203.0.113.5:30443".into());
        config.spec.lend_without_network_policies = true;
        let mut policy = PeeringPolicy::new("default", liqo_api::PeeringPolicySpec::default());
        policy.spec.provide.percentage = 40;
        let present = InstalledState {
            config: Some(config),
            policy: Some(policy),
            auto_peering: None,
            replicas: Some(2),
            image: Some("localhost/liqo/controller-manager:0.0.1".into()),
            fabric_image: Some("localhost/liqo/fabric:mine".into()),
            key_directory: Some("/opt/liqo".into()),
            avoid_nodes: [("spot".to_owned(), "yes".to_owned())].into(),
            nodes: Vec::new(),
        };
        let kept = InstallValues::resolve(&InstallSettings::default(), &present, "other");
        assert_eq!(
            (
                kept.cluster_name.as_str(),
                kept.policy.provide.percentage,
                kept.replicas
            ),
            ("rome", 40, 2)
        );
        assert_eq!(kept.avoid_nodes, present.avoid_nodes);
        assert_eq!(
            (first.key_directory.as_str(), kept.key_directory.as_str()),
            ("/var/lib/liqo", "/opt/liqo")
        );
        assert!(!first.lend_without_network_policies && kept.lend_without_network_policies);
        assert_eq!(
            kept.authentication_address.as_deref(),
            Some("https://203.0.113.5:30443")
        );
        // Replaces the default image of another version, and keeps an image that a user chose.
        assert_eq!(
            (kept.image, kept.fabric_image.as_str()),
            (default_image(), "localhost/liqo/fabric:mine")
        );
        let chosen = InstalledState {
            image: Some("localhost/liqo/controller-manager:1a2b3c".into()),
            ..present.clone()
        };
        assert_eq!(
            InstallValues::resolve(&InstallSettings::default(), &chosen, "other").image,
            "localhost/liqo/controller-manager:1a2b3c"
        );

        let unset = [
            "authentication.address=",
            "controllerManager.avoidNodes=",
            "fabric.keyDirectory=",
            "lendWithoutNetworkPolicies=false",
        ];
        let unset =
            InstallValues::resolve(&InstallSettings::parse(&unset).unwrap(), &present, "other");
        assert!(!unset.lend_without_network_policies);
        assert_eq!(unset.key_directory, first.key_directory);
        assert_eq!(
            (unset.authentication_address, unset.avoid_nodes.len()),
            (None, 0)
        );
    }

    #[test]
    fn the_lifetime_of_credentials_is_ten_minutes_to_a_day_and_stays_until_it_is_set_again() {
        let resolved = |set: &[&str], kept: u32| {
            let mut config = ClusterConfig::new("liqo", liqo_api::ClusterConfigSpec::default());
            config.spec.peering.credential_lifetime_seconds = kept;
            let present = InstalledState {
                config: Some(config),
                ..InstalledState::default()
            };
            InstallSettings::parse(set).map(|settings| {
                InstallValues::resolve(&settings, &present, "x").credential_lifetime_seconds
            })
        };
        assert_eq!(
            resolved(&[], 3600),
            Ok(None),
            "a later version can change the default"
        );
        assert_eq!(resolved(&[], 1800), Ok(Some(1800)));
        assert_eq!(
            resolved(&["peering.credentialLifetimeSeconds=600"], 1800),
            Ok(Some(600))
        );
        assert_eq!(
            resolved(&["peering.credentialLifetimeSeconds="], 1800),
            Ok(Some(3600))
        );
        for wrong in ["599", "86401", "1h", "-1"] {
            assert!(
                resolved(
                    &[&format!("peering.credentialLifetimeSeconds={wrong}")],
                    3600
                )
                .is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn the_nodes_decide_on_the_replicas_only_until_there_is_a_number_and_when_the_user_says_so() {
        let node: Node = serde_json::from_value(serde_json::json!({
            "metadata": { "name": "n" },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        }))
        .unwrap();
        let replicas = |set: &[&str], nodes: usize, replicas: Option<u16>| {
            let present = InstalledState {
                replicas,
                nodes: vec![node.clone(); nodes],
                ..InstalledState::default()
            };
            InstallValues::resolve(&InstallSettings::parse(set).unwrap(), &present, "x").replicas
        };
        assert_eq!(
            [replicas(&[], 1, None), replicas(&[], 2, None)],
            [1, 2],
            "the first installation"
        );
        assert_eq!(
            [replicas(&[], 2, Some(1)), replicas(&[], 1, Some(2))],
            [1, 2],
            "a later one keeps the number"
        );
        assert_eq!(replicas(&["controllerManager.replicas="], 2, Some(1)), 2);
        assert_eq!(replicas(&["controllerManager.replicas=3"], 1, Some(1)), 3);
    }
}
