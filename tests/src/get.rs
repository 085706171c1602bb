//! `kubectl get` without a process: scenarios read objects several times a second, and so many
//! processes would use more of a small machine than the clusters do.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams},
    discovery::{Discovery, Scope},
};
use serde_json::{Value, json};
use tokio::sync::Mutex;

/// The kinds of an API server. An unknown kind makes it read them again.
#[derive(Clone, Default)]
pub struct Kinds(Arc<Mutex<Vec<(ApiResource, Scope)>>>);

/// The arguments of `kubectl get`.
struct Query<'a> {
    resource: &'a str,
    name: Option<&'a str>,
    namespace: Option<&'a str>,
    all_namespaces: bool,
    parameters: ListParams,
}

impl Kinds {
    /// The kind with this plural or this name (in any case), without short names and groups. The
    /// core group takes precedence.
    async fn find(&self, client: &Client, word: &str) -> Result<(ApiResource, Scope)> {
        let mut known = self.0.lock().await;
        let find = |known: &[(ApiResource, Scope)]| {
            known
                .iter()
                .find(|(kind, _)| kind.plural == word || kind.kind.eq_ignore_ascii_case(word))
                .cloned()
        };
        if let Some(found) = find(&known) {
            return Ok(found);
        }
        let discovery = Discovery::new(client.clone())
            .run_aggregated()
            .await
            .context("reading the kinds of the API server")?;
        *known = discovery
            .groups_alphabetical()
            .into_iter()
            .flat_map(kube::discovery::ApiGroup::recommended_resources)
            .map(|(kind, capabilities)| (kind, capabilities.scope))
            .collect();
        find(&known).with_context(|| {
            format!("the API server has no kind {word}: use its plural or its kind")
        })
    }

    /// The object or the list that `kubectl get ARGUMENTS -o json --ignore-not-found` would print.
    pub async fn get(&self, client: &Client, arguments: &[&str]) -> Result<Option<Value>> {
        let Query {
            resource,
            name,
            namespace,
            all_namespaces,
            parameters,
        } = parse(arguments)?;
        let (kind, scope) = self.find(client, resource).await?;
        let api: Api<DynamicObject> = match scope {
            Scope::Namespaced if !all_namespaces => {
                Api::namespaced_with(client.clone(), namespace.unwrap_or("default"), &kind)
            }
            _ => Api::all_with(client.clone(), &kind),
        };
        if let Some(name) = name {
            let object = api
                .get_opt(name)
                .await
                .with_context(|| format!("reading {resource} {name}"))?;
            return object
                .map(|object| Ok(serde_json::to_value(object)?))
                .transpose();
        }
        let objects = api
            .list(&parameters)
            .await
            .with_context(|| format!("listing {resource}"))?;
        Ok(Some(json!({ "items": objects.items })))
    }
}

fn parse<'a>(arguments: &[&'a str]) -> Result<Query<'a>> {
    let mut query = Query {
        resource: "",
        name: None,
        namespace: None,
        all_namespaces: false,
        parameters: ListParams::default(),
    };
    let mut arguments = arguments.iter().copied();
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .with_context(|| format!("{argument} needs a value"))
        };
        match argument {
            "-n" => query.namespace = Some(value()?),
            "-l" => query.parameters = query.parameters.labels(value()?),
            "--field-selector" => query.parameters = query.parameters.fields(value()?),
            "-A" | "--all-namespaces" => query.all_namespaces = true,
            flag if flag.starts_with('-') => bail!("{flag} is not supported here: use `kubectl`"),
            resource if query.resource.is_empty() => query.resource = resource,
            name if query.name.is_none() => query.name = Some(name),
            extra => bail!("{extra} is not expected after the name of an object"),
        }
    }
    Ok(query)
}
