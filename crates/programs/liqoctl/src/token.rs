//! `liqoctl token`: tokens that other clusters need for their first contact. A token is a Secret in
//! Liqo's namespace.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, bail};
use clap::Args;
use data_encoding::BASE32_NOPAD;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use liqo_api::{annotations, labels};
use rand::{TryRngCore as _, rngs::OsRng};
use serde::Serialize;

use crate::{
    apply::FIELD_MANAGER,
    cluster::{Cluster, ExplainFailure as _, is_absent},
    manifests::NAMESPACE,
    output, settings,
};

/// The key in the Secret.
pub const TOKEN: &str = "token";

/// Number of times that a token can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenUse {
    OneTime,
    /// By at most `max_uses` clusters.
    Reusable {
        max_uses: u16,
    },
}

impl TokenUse {
    /// The value of the label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OneTime => "one-time",
            Self::Reusable { .. } => "reusable",
        }
    }
}

/// Options of `token create`, and part of those of `generate peer-command`.
#[derive(Clone, Debug, Args)]
pub struct TokenCreateOptions {
    /// Name of the token [default: random]
    #[arg(long, value_parser = settings::cluster_name)]
    pub name: Option<String>,
    /// Replace the token of that name, which becomes invalid
    #[arg(long, requires = "name")]
    pub replace: bool,
    /// Let several clusters use the token
    #[arg(long)]
    pub reusable: bool,
    /// How many clusters may use a reusable token
    #[arg(long, requires = "reusable", default_value_t = 10, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub max_uses: u16,
    /// How long the token is valid, for example 15m, 24h, 7d
    #[arg(long, default_value = "24h", value_parser = parse_duration, value_name = "DURATION")]
    pub lifetime: Duration,
}

impl TokenCreateOptions {
    fn usage(&self) -> TokenUse {
        if self.reusable {
            TokenUse::Reusable {
                max_uses: self.max_uses,
            }
        } else {
            TokenUse::OneTime
        }
    }
}

/// A token in the list.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ListedToken {
    /// Name of its Secret.
    pub name: String,
    /// `one-time` or `reusable`.
    pub usage: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Number of clusters that use it.
    pub uses: usize,
    /// Maximum number of clusters that may use it, if it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_uses: Option<u16>,
    /// The token itself; only right after its creation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub token: String,
}

/// 32 random bytes as lower-case base32.
pub fn random_token() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    OsRng
        .try_fill_bytes(&mut bytes)
        .context("the system's random generator failed")?;
    Ok(BASE32_NOPAD.encode(&bytes).to_ascii_lowercase())
}

/// A Secret in Liqo's namespace that contains a token; `labelled` if the token is valid here, and
/// not if another cluster issued it.
pub fn secret_with_token(
    name: &str,
    token: &str,
    labelled: Option<TokenUse>,
    expires_at: Option<Timestamp>,
) -> Secret {
    let mut with = BTreeMap::from([(labels::MANAGED.to_owned(), "true".to_owned())]);
    if let Some(usage) = labelled {
        with.insert(labels::PEERING_TOKEN.to_owned(), usage.as_str().to_owned());
    }
    let expires_at = expires_at.map(|at| (annotations::EXPIRES_AT.to_owned(), at.to_string()));
    let max_uses = match labelled {
        Some(TokenUse::Reusable { max_uses }) => {
            Some((annotations::MAX_USES.to_owned(), max_uses.to_string()))
        }
        _ => None,
    };
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            labels: Some(with),
            annotations: Some(expires_at.into_iter().chain(max_uses).collect()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(
            TOKEN.to_owned(),
            ByteString(token.as_bytes().to_vec()),
        )])),
        ..Secret::default()
    }
}

/// Writes a Secret with a token.
pub async fn store_secret(cluster: &Cluster, secret: &Secret) -> anyhow::Result<()> {
    let api: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    api.patch(
        &secret.name_any(),
        &PatchParams::apply(FIELD_MANAGER).force(),
        &Patch::Apply(secret),
    )
    .await
    .doing(format!(
        "write the Secret with the token in cluster {}",
        cluster.context
    ))?;
    Ok(())
}

pub async fn create_token(
    cluster: &Cluster,
    options: &TokenCreateOptions,
) -> anyhow::Result<ListedToken> {
    let token = random_token()?;
    let name = options
        .name
        .clone()
        .unwrap_or_else(|| format!("peering-token-{}", &token[..8]));
    let end = Timestamp::now()
        .checked_add(SignedDuration::try_from(options.lifetime)?)
        .context("this lifetime is too long")?;
    let expires_at = Timestamp::from_second(end.as_second())?;
    // An expired token does not keep its name.
    remove_expired_tokens(cluster, Timestamp::now()).await?;
    let secret = secret_with_token(&name, &token, Some(options.usage()), Some(expires_at));
    let api: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    match api
        .create(
            &PostParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PostParams::default()
            },
            &secret,
        )
        .await
    {
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let present = api
                .get_opt(&name)
                .await
                .doing(format!("read Secret {name}"))?;
            may_replace(&name, present.as_ref(), options.replace)?;
            store_secret(cluster, &secret).await?;
        }
        created => drop(created.doing(format!(
            "write the Secret with the token in cluster {}",
            cluster.context
        ))?),
    }
    Ok(ListedToken {
        name,
        token,
        ..listed_token(&secret)
    })
}

/// An error if a Secret of this name is no token, or if the user does not want to replace it.
fn may_replace(name: &str, present: Option<&Secret>, replace: bool) -> anyhow::Result<()> {
    match present {
        Some(secret) if !secret.labels().contains_key(labels::PEERING_TOKEN) => {
            bail!("Secret {name} in namespace {NAMESPACE} is no token: choose another --name")
        }
        Some(_) if !replace => {
            bail!(
                "there is a token {name} already: choose another --name, or make that token invalid with --replace"
            )
        }
        _ => Ok(()),
    }
}

/// Removes expired tokens.
pub async fn remove_expired_tokens(cluster: &Cluster, now: Timestamp) -> anyhow::Result<()> {
    let api: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let secrets = api
        .list_metadata(&ListParams::default().labels(labels::PEERING_TOKEN))
        .await
        .doing("list the tokens")?;
    for expired in secrets
        .items
        .iter()
        .filter(|secret| is_expired(secret.annotations(), now))
    {
        match api
            .delete(&expired.name_any(), &DeleteParams::default())
            .await
        {
            Err(error) if !is_absent(&error) => {
                return Err(error)
                    .doing(format!("delete the expired token {}", expired.name_any()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a token has expired.
fn is_expired(with: &BTreeMap<String, String>, now: Timestamp) -> bool {
    with.get(annotations::EXPIRES_AT)
        .and_then(|at| at.parse::<Timestamp>().ok())
        .is_some_and(|at| at < now)
}

/// The tokens that are valid here.
pub async fn list_tokens(cluster: &Cluster) -> anyhow::Result<Vec<ListedToken>> {
    let api: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let secrets = api
        .list(&ListParams::default().labels(labels::PEERING_TOKEN))
        .await
        .doing("list the tokens")?;
    Ok(secrets.items.iter().map(listed_token).collect())
}

fn listed_token(secret: &Secret) -> ListedToken {
    ListedToken {
        name: secret.name_any(),
        usage: secret
            .labels()
            .get(labels::PEERING_TOKEN)
            .cloned()
            .unwrap_or_default(),
        expires_at: secret.annotations().get(annotations::EXPIRES_AT).cloned(),
        uses: secret
            .annotations()
            .get(annotations::USED_BY)
            .map_or(0, |users| users.split(',').count()),
        max_uses: secret
            .annotations()
            .get(annotations::MAX_USES)
            .and_then(|number| number.parse().ok()),
        token: String::new(),
    }
}

/// Makes a token invalid. Existing peerings stay.
pub async fn delete_token(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let api: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let known = api
        .get_opt(name)
        .await
        .doing(format!("read Secret {name}"))?;
    if !known.is_some_and(|secret| secret.labels().contains_key(labels::PEERING_TOKEN)) {
        bail!("there is no token {name}: see `liqoctl token list`");
    }
    match api.delete(name, &DeleteParams::default()).await {
        Err(error) if is_absent(&error) => Ok(()),
        deleted => deleted.map(drop).doing(format!("delete Secret {name}")),
    }
}

pub fn render_tokens(tokens: &[ListedToken]) -> String {
    if tokens.is_empty() {
        return "No tokens. Create one with `liqoctl token create`, or with `liqoctl generate peer-command`.".to_owned();
    }
    output::format_table(&["NAME", "USE", "EXPIRES"], tokens.iter().map(token_row))
}

fn token_row(token: &ListedToken) -> Vec<String> {
    let expires = token
        .expires_at
        .as_deref()
        .map_or_else(|| "never".to_owned(), output::to_the_second);
    let usage = match token.max_uses {
        Some(max) => format!("{}, {} of {max} clusters", token.usage, token.uses),
        None => token.usage.clone(),
    };
    vec![token.name.clone(), usage, expires]
}

/// Parses a duration, for example `90s`, `15m`, `24h` or `7d`. A bare number means seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let problem = format!("{text:?} is not a duration; durations are given as 90s, 15m, 24h or 7d");
    let (number, unit) = text.split_at(
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len()),
    );
    let Ok(number) = number.parse::<u64>() else {
        return Err(problem);
    };
    let seconds = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return Err(problem),
    };
    number
        .checked_mul(seconds)
        .filter(|total| *total > 0)
        .map(Duration::from_secs)
        .ok_or(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_and_never_the_same() {
        let token = random_token().unwrap();
        assert_eq!(token.len(), 52);
        assert_ne!(token, random_token().unwrap());
    }

    #[test]
    fn only_a_labelled_secret_lets_anybody_in() {
        assert!(
            secret_with_token("x", "t", Some(TokenUse::OneTime), None)
                .labels()
                .contains_key(labels::PEERING_TOKEN)
        );
        assert!(
            !secret_with_token("x", "t", None, None)
                .labels()
                .contains_key(labels::PEERING_TOKEN)
        );
    }

    #[test]
    fn only_tokens_that_say_so_are_expired() {
        let (before, now) = (
            Timestamp::UNIX_EPOCH,
            Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1),
        );
        let expired = |at| {
            is_expired(
                secret_with_token("x", "t", Some(TokenUse::OneTime), at).annotations(),
                now,
            )
        };
        assert!(expired(Some(before)) && !expired(Some(now)) && !expired(None));
        assert!(!is_expired(
            &BTreeMap::from([(annotations::EXPIRES_AT.to_owned(), "some day".to_owned())]),
            now
        ));
    }

    #[test]
    fn a_listed_token_does_not_show_itself() {
        let listed = listed_token(&secret_with_token(
            "x",
            "hidden-value",
            Some(TokenUse::Reusable { max_uses: 3 }),
            None,
        ));
        assert_eq!(
            (listed.usage.as_str(), listed.uses, listed.max_uses),
            ("reusable", 0, Some(3))
        );
        assert!(render_tokens(std::slice::from_ref(&listed)).contains("reusable, 0 of 3 clusters"));
        assert!(
            !serde_json::to_string(&listed)
                .unwrap()
                .contains("hidden-value")
        );
    }

    #[test]
    fn a_token_is_replaced_only_if_the_user_says_so() {
        let token = secret_with_token("x", "t", Some(TokenUse::OneTime), None);
        assert!(
            may_replace("x", Some(&token), false)
                .unwrap_err()
                .to_string()
                .contains("--replace")
        );
        assert!(
            may_replace("x", Some(&token), true).is_ok() && may_replace("x", None, false).is_ok()
        );
        let other = secret_with_token("x", "t", None, None);
        assert!(
            may_replace("x", Some(&other), true)
                .unwrap_err()
                .to_string()
                .contains("is no token")
        );
    }

    #[test]
    fn the_list_shows_times_to_the_second() {
        let token = |expires_at: Option<&str>| ListedToken {
            name: "x".into(),
            usage: "reusable".into(),
            expires_at: expires_at.map(Into::into),
            uses: 0,
            max_uses: None,
            token: String::new(),
        };
        let text = render_tokens(&[token(Some("2026-01-01T12:00:00.123456789Z")), token(None)]);
        assert!(
            text.contains("2026-01-01T12:00:00Z")
                && text.contains("never")
                && !text.contains(".1234"),
            "{text}"
        );
    }

    #[test]
    fn durations_are_understood() {
        assert_eq!(parse_duration("15m").unwrap(), Duration::from_mins(15));
        assert_eq!(parse_duration("7d").unwrap(), Duration::from_hours(168));
        assert_eq!(parse_duration("5").unwrap(), Duration::from_secs(5));
        for text in ["", "0", "m", "0s", "-1h", "1w", "99999999999999999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
