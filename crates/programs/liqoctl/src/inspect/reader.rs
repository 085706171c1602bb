//! Requests with a time limit, whose errors are texts.

use std::{fmt::Debug, time::Duration};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{Api, Client, Resource, api::ListParams};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use super::facts::ReadResult;
use crate::cluster::{Cluster, explain_request_error, is_absent};

/// Time limit of one request.
pub const TIMEOUT: Duration = Duration::from_secs(15);
/// Requests of one kind that run at the same time.
pub const MAX_CONCURRENT: usize = 8;

/// Reads objects of one cluster, and remembers which requests the user has no right to make.
pub struct ClusterReader {
    pub(super) client: Client,
    refused: Mutex<Vec<String>>,
}

impl ClusterReader {
    pub fn new(cluster: &Cluster) -> Self {
        Self::with_client(cluster.client.clone())
    }

    pub fn with_client(client: Client) -> Self {
        Self {
            client,
            refused: Mutex::default(),
        }
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The forbidden requests as texts, for example `list nodes`.
    pub fn forbidden_requests(self) -> Vec<String> {
        self.refused.into_inner()
    }

    /// Waits for an answer, and turns a failure into a text: `cannot {what}: ...`.
    pub async fn await_answer<T>(
        &self,
        what: &str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> ReadResult<T> {
        match tokio::time::timeout(TIMEOUT, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                if matches!(&error, kube::Error::Api(status) if status.code == 403) {
                    self.refused.lock().push(what.to_owned());
                }
                Err(format!("cannot {what}: {}", explain_request_error(error)))
            }
            Err(_) => Err(format!(
                "cannot {what}: no answer in {} s",
                TIMEOUT.as_secs()
            )),
        }
    }

    pub async fn list<K>(&self, parameters: &ListParams) -> ReadResult<Vec<K>>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        self.list_from(
            &format!("list {}", K::plural(&())),
            Api::all(self.client.clone()),
            parameters,
        )
        .await
    }

    pub async fn list_in<K>(&self, namespace: &str, parameters: &ListParams) -> ReadResult<Vec<K>>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        let api = Api::namespaced(self.client.clone(), namespace);
        self.list_from(
            &format!("list {} in {namespace}", K::plural(&())),
            api,
            parameters,
        )
        .await
    }

    async fn list_from<K>(
        &self,
        what: &str,
        api: Api<K>,
        parameters: &ListParams,
    ) -> ReadResult<Vec<K>>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        self.await_answer(what, async {
            match api.list(parameters).await {
                Ok(list) => Ok(list.items),
                // The API server does not know the kind, so there are no objects.
                Err(error) if is_absent(&error) => Ok(Vec::new()),
                Err(error) => Err(error),
            }
        })
        .await
    }

    pub async fn list_in_all<K>(&self, namespaces: &[String]) -> ReadResult<Vec<K>>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        let everything = ListParams::default();
        let lists =
            stream::iter(namespaces).map(|namespace| self.list_in::<K>(namespace, &everything));
        let lists: Vec<Vec<K>> = lists.buffered(MAX_CONCURRENT).try_collect().await?;
        Ok(lists.into_iter().flatten().collect())
    }

    pub async fn get_cluster_wide<K>(&self, name: &str) -> ReadResult<Option<K>>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        self.get_from(
            &format!("read {} {name}", K::kind(&())),
            Api::all(self.client.clone()),
            name,
        )
        .await
    }

    pub async fn get<K>(&self, namespace: &str, name: &str) -> ReadResult<Option<K>>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        let api = Api::namespaced(self.client.clone(), namespace);
        self.get_from(
            &format!("read {} {namespace}/{name}", K::kind(&())),
            api,
            name,
        )
        .await
    }

    pub async fn get_from<K>(&self, what: &str, api: Api<K>, name: &str) -> ReadResult<Option<K>>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        self.await_answer(what, async {
            match api.get(name).await {
                Ok(object) => Ok(Some(object)),
                Err(error) if is_absent(&error) => Ok(None),
                Err(error) => Err(error),
            }
        })
        .await
    }
}
