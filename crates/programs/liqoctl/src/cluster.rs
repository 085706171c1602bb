//! The connection to one cluster, and what a failed request means to the user.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use kube::{
    Api, Client, Config, ResourceExt,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use liqo_api::{CLUSTER_CONFIG, ClusterConfig, ClusterId};

/// Selects a cluster: a kubeconfig file and a context in it. The default is kubectl's.
#[derive(Clone, Debug, Default)]
pub struct ClusterAccess {
    pub kubeconfig: Option<PathBuf>,
    pub context: Option<String>,
}

impl ClusterAccess {
    /// The current context of a kubeconfig file.
    pub fn from_file(path: impl Into<PathBuf>) -> Self {
        Self {
            kubeconfig: Some(path.into()),
            context: None,
        }
    }

    /// The flags for `liqoctl` that select the same cluster.
    pub fn flags(&self) -> String {
        let kubeconfig = self
            .kubeconfig
            .as_ref()
            .map(|path| format!(" --kubeconfig {}", path.display()));
        let context = self
            .context
            .as_ref()
            .map(|context| format!(" --context {context}"));
        kubeconfig.into_iter().chain(context).collect()
    }
}

/// A cluster and a client for its API server.
#[derive(Clone)]
pub struct Cluster {
    /// Client acting as the user.
    pub client: Client,
    /// The kubeconfig and context that led to it.
    pub access: ClusterAccess,
    /// Its name in the kubeconfig, from which a cluster name can be made.
    pub context: String,
    /// URL of its API server.
    pub server: String,
}

impl Cluster {
    /// Reads the kubeconfig. The first request shows whether the cluster answers.
    pub async fn connect(access: &ClusterAccess) -> anyhow::Result<Self> {
        let kubeconfig = match &access.kubeconfig {
            Some(path) => Kubeconfig::read_from(path)
                .map_err(|error| explain_unusable_kubeconfig(error, path))?,
            None => match Kubeconfig::read() {
                Ok(kubeconfig) => kubeconfig,
                Err(_) if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() => {
                    return Self::in_cluster(access);
                }
                Err(error) => {
                    let hint = "no kubeconfig: give one with --kubeconfig or in the environment variable KUBECONFIG";
                    return Err(without_quotes(error).context(hint));
                }
            },
        };
        let context = access
            .context
            .clone()
            .or_else(|| kubeconfig.current_context.clone())
            .unwrap_or_default();
        let cluster_name = kubeconfig
            .contexts
            .iter()
            .find(|named| named.name == context)
            .and_then(|named| named.context.as_ref())
            .map_or_else(|| context.clone(), |context| context.cluster.clone());
        let options = KubeConfigOptions {
            context: access.context.clone(),
            ..KubeConfigOptions::default()
        };
        let config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .context("cannot use the kubeconfig: see `kubectl config get-contexts`")?;
        Self::build(config, access, cluster_name)
    }

    fn in_cluster(access: &ClusterAccess) -> anyhow::Result<Self> {
        let config = Config::incluster()
            .context("there is neither a usable kubeconfig nor a ServiceAccount")?;
        Self::build(config, access, "in-cluster".to_owned())
    }

    fn build(mut config: Config, access: &ClusterAccess, context: String) -> anyhow::Result<Self> {
        // Proxies in the environment are for the internet; this program connects to clusters
        // directly.
        config.proxy_url = None;
        config.connect_timeout = Some(Duration::from_secs(10));
        // The client would wait as long as the answer "429" says, and try again 15 times. The
        // answer to an eviction that a disruption budget does not allow is of that kind.
        config.default_retry = false;
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config).context("cannot use the kubeconfig")?;
        Ok(Self {
            client,
            access: access.clone(),
            context,
            server,
        })
    }

    /// The `ClusterConfig`, or nothing where Liqo is not installed.
    pub async fn read_configuration(&self) -> anyhow::Result<Option<ClusterConfig>> {
        self.explain_configuration(self.get_configuration().await)
    }

    async fn get_configuration(&self) -> kube::Result<Option<ClusterConfig>> {
        let api: Api<ClusterConfig> = Api::all(self.client.clone());
        api.get_opt(CLUSTER_CONFIG).await
    }

    fn explain_configuration(
        &self,
        read: kube::Result<Option<ClusterConfig>>,
    ) -> anyhow::Result<Option<ClusterConfig>> {
        match read {
            Ok(config) => Ok(config),
            // The API server does not know the kind.
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(explain_request_error(error)).with_context(|| {
                format!(
                    "cannot read ClusterConfig {CLUSTER_CONFIG} of {}",
                    self.context
                )
            }),
        }
    }

    /// Whether Liqo should connect this cluster's pods with those of other clusters.
    pub async fn has_network(&self) -> anyhow::Result<bool> {
        Ok(self
            .read_configuration()
            .await?
            .is_some_and(|config| config.spec.network.enabled))
    }

    /// The `ClusterConfig`, or nothing where Liqo is not installed, or this user may not see it.
    pub async fn visible_configuration(&self) -> anyhow::Result<Option<ClusterConfig>> {
        match self.get_configuration().await {
            Err(error) if is_forbidden(&error) => Ok(None),
            read => self.explain_configuration(read),
        }
    }

    /// Liqo in this cluster, or nothing if this user may not see it: people with rights in one
    /// namespace use Liqo there, and know nothing of the whole cluster.
    pub async fn visible_installation(&self) -> anyhow::Result<Option<InstalledLiqo>> {
        match self.get_configuration().await {
            Err(error) if is_forbidden(&error) => Ok(None),
            read => self
                .installed_liqo(self.explain_configuration(read)?)
                .map(Some),
        }
    }

    /// The `ClusterConfig`; an error if Liqo is not installed.
    pub async fn require_installed(&self) -> anyhow::Result<InstalledLiqo> {
        self.installed_liqo(self.read_configuration().await?)
    }

    fn installed_liqo(&self, config: Option<ClusterConfig>) -> anyhow::Result<InstalledLiqo> {
        let config = config.ok_or_else(|| {
            anyhow!(
                "Liqo is not installed in cluster {}: run `liqoctl{} install`",
                self.context,
                self.access.flags()
            )
        })?;
        let status = config.status.clone().unwrap_or_default();
        let id = status.cluster_id.ok_or_else(|| {
            anyhow!(
                "Liqo in cluster {} has not started yet: see `kubectl{} -n liqo get pods`",
                self.context,
                self.access.flags()
            )
        })?;
        Ok(InstalledLiqo { id, config })
    }
}

/// Explains why a kubeconfig cannot be used.
fn explain_unusable_kubeconfig(error: KubeconfigError, path: &Path) -> anyhow::Error {
    let what = format!("cannot read the kubeconfig {}", path.display());
    match error {
        KubeconfigError::ReadConfig(cause, _) => anyhow!(cause).context(what),
        error => anyhow!(error).context(what),
    }
}

/// The error with the file's name as a user writes it.
fn without_quotes(error: KubeconfigError) -> anyhow::Error {
    match error {
        KubeconfigError::ReadConfig(_, ref path) => {
            let path = path.clone();
            explain_unusable_kubeconfig(error, &path)
        }
        error => anyhow!(error),
    }
}

/// Liqo in a cluster.
#[derive(Clone, Debug)]
pub struct InstalledLiqo {
    pub id: ClusterId,
    /// Its configuration and what the manager found out.
    pub config: ClusterConfig,
}

/// Adds to a failed request what the program wanted to do.
pub trait ExplainFailure<T> {
    /// Says what could not be done, and why.
    fn doing(self, what: impl Display) -> anyhow::Result<T>;
}

impl<T> ExplainFailure<T> for kube::Result<T> {
    fn doing(self, what: impl Display) -> anyhow::Result<T> {
        self.map_err(|error| explain_request_error(error).context(format!("cannot {what}")))
    }
}

/// Explains a failed request, with the next step if there is one.
pub fn explain_request_error(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) if status.code == 401 => {
            anyhow!(
                "the API server does not know this user: are the kubeconfig's credentials out of date?"
            )
        }
        kube::Error::Api(status) if status.code == 403 => {
            MissingRight(missing_right(&status.message).unwrap_or(status.message)).into()
        }
        kube::Error::Api(status) => anyhow!("{}", status.message),
        kube::Error::Service(error) => anyhow!(
            "cannot reach the API server ({}): is the cluster up, and does the kubeconfig belong to it?",
            innermost_cause(error.as_ref())
        ),
        kube::Error::HyperError(error) => anyhow!(
            "the connection to the API server broke ({})",
            innermost_cause(&error)
        ),
        error => anyhow!(error),
    }
}

/// The innermost cause says most; the errors around it repeat each other.
fn innermost_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// This user may not do what was asked.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct MissingRight(String);

/// Whether this user may not do what was asked.
fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// What `liqo-user` in deploy/liqo/rbac-users.yaml lets people read.
const READABLE_BY_USERS: [&str; 4] = ["clusterconfigs", "foreignclusters", "nodes", "virtualnodes"];

/// One sentence about a right that this user does not have, from the API server's message.
fn missing_right(message: &str) -> Option<String> {
    let (_, rest) = message.split_once(" cannot ")?;
    let (verb, rest) = rest.split_once(" resource \"")?;
    let (resource, rest) = rest.split_once('"')?;
    let place = match rest.split_once(" in the namespace \"") {
        Some((_, namespace)) => format!("in namespace {}", namespace.split('"').next()?),
        None if rest.contains("at the cluster scope") => "in the whole cluster".to_owned(),
        None => return None,
    };
    let who = if READABLE_BY_USERS.contains(&resource) && ["get", "list", "watch"].contains(&verb) {
        "an administrator allows it with `kubectl create clusterrolebinding liqo-users --clusterrole=liqo-user --group=GROUP`"
    } else {
        "ask an administrator of the cluster"
    };
    Some(format!("you may not {verb} {resource} {place}: {who}"))
}

/// Whether the request failed because the object, its kind or its whole API group does not exist.
/// For a missing group, the API server answers with a bare status code.
pub fn is_absent(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// `namespace/name`, or the name alone.
pub fn full_name(object: &impl ResourceExt) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_is_one_sentence_with_who_can_give_it() {
        let message = |what: &str| {
            let message =
                format!("x is forbidden: User \"system:serviceaccount:people:ann\" {what}");
            missing_right(&message).unwrap()
        };
        let peers = message(
            "cannot list resource \"foreignclusters\" in API group \"discovery.liqo.io\" at the cluster scope",
        );
        let readable = "you may not list foreignclusters in the whole cluster: an administrator allows it with `kubectl create clusterrolebinding liqo-users";
        assert!(peers.starts_with(readable), "{peers}");
        assert_eq!(
            message("cannot get resource \"pods\" in API group \"\" in the namespace \"shop\""),
            "you may not get pods in namespace shop: ask an administrator of the cluster"
        );
        assert_eq!(
            message(
                "cannot patch resource \"foreignclusters\" in API group \"discovery.liqo.io\" at the cluster scope"
            ),
            "you may not patch foreignclusters in the whole cluster: ask an administrator of the cluster"
        );
        assert_eq!(missing_right("exceeded quota"), None);
    }

    #[test]
    fn users_may_read_what_the_sentence_promises() {
        let objects = crate::manifests::with_defaults().unwrap();
        let role = objects
            .iter()
            .find(|object| object.name_any() == "liqo-user")
            .unwrap();
        let mut resources: Vec<&str> = role.data["rules"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|rule| rule["resources"].as_array().unwrap())
            .map(|resource| resource.as_str().unwrap())
            .collect();
        resources.sort_unstable();
        assert_eq!(resources, READABLE_BY_USERS);
    }

    #[tokio::test]
    async fn a_missing_kubeconfig_is_named_once_and_without_quotes() {
        let error = Cluster::connect(&ClusterAccess::from_file("/nope"))
            .await
            .err()
            .unwrap();
        assert_eq!(
            format!("{error:#}"),
            "cannot read the kubeconfig /nope: No such file or directory (os error 2)"
        );
    }
}
