//! Whether a token for the first contact is valid. Tokens are Secrets in Liqo's namespace, labelled
//! as reusable or one-time.

use std::borrow::Borrow;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use liqo_api::{ClusterId, annotations, labels};
use ring::hmac;

use super::access::{TokenClaim, TokenVerdict};

/// The key in the Secret's data.
pub const TOKEN: &str = "token";

/// Value of the label `liqo.io/peering-token` for a token that several clusters can use.
pub const REUSABLE: &str = "reusable";

/// Value of the label `liqo.io/peering-token` for a token that one cluster can use.
pub const ONE_TIME: &str = "one-time";

/// Maximum number of clusters that use a reusable token, if its Secret does not contain the number.
const DEFAULT_MAX_USES: usize = 10;

/// Maximum number of clusters that use one token: their IDs are in an annotation.
const MAX_USES: usize = 1000;

/// Checks the token that a consumer presents against the Secrets that exist. If several Secrets
/// contain it, the most permissive one counts.
pub fn verdict_on_token<S: Borrow<Secret>>(
    secrets: &[S],
    presented: Option<&str>,
    consumer: &ClusterId,
    now: Timestamp,
) -> TokenVerdict {
    let Some(presented) = presented else {
        return TokenVerdict::Absent;
    };
    // Compares digests, and all of them, so that the time taken reveals nothing about any token.
    let matching: Vec<&Secret> = secrets
        .iter()
        .map(Borrow::borrow)
        .filter(|secret| secret_has_token(secret, presented))
        .collect();
    let (valid, expired): (Vec<&Secret>, Vec<&Secret>) = matching
        .into_iter()
        .partition(|secret| !has_expired(secret, now));
    let found: Vec<TokenVerdict> = valid
        .iter()
        .filter_map(|secret| verdict_of_secret(secret, consumer))
        .collect();
    let valid = found
        .iter()
        .find(|verdict| matches!(verdict, TokenVerdict::Valid(_)))
        .or(found.first());
    match valid {
        Some(verdict) => verdict.clone(),
        None if expired.is_empty() => TokenVerdict::Unknown,
        None => TokenVerdict::Expired,
    }
}

/// The verdict on this consumer by the Secret of a valid token; none if another consumer uses a
/// one-time token.
fn verdict_of_secret(secret: &Secret, consumer: &ClusterId) -> Option<TokenVerdict> {
    let is_reusable = match token_kind(secret)? {
        REUSABLE => true,
        ONE_TIME => false,
        _ => return None,
    };
    let max = if is_reusable { max_uses(secret) } else { 1 };
    let text = secret
        .annotations()
        .get(annotations::USED_BY)
        .map(String::as_str)
        .unwrap_or_default();
    let mut users: Vec<&str> = text.split(',').filter(|user| !user.is_empty()).collect();
    let is_claimed = users.contains(&consumer.as_str());
    if !is_claimed {
        if users.len() >= max {
            return is_reusable.then_some(TokenVerdict::UsedUp);
        }
        users.push(consumer.as_str());
    }
    Some(TokenVerdict::Valid(TokenClaim {
        name: secret.name_any(),
        uid: secret.uid().unwrap_or_default(),
        resource_version: secret.resource_version().unwrap_or_default(),
        is_claimed,
        is_reusable,
        used_by: users.join(","),
    }))
}

/// Maximum number of clusters that use a reusable token. A number that cannot be parsed allows
/// none: its creator did not mean that.
fn max_uses(secret: &Secret) -> usize {
    let said = secret.annotations().get(annotations::MAX_USES);
    said.map_or(DEFAULT_MAX_USES, |text| text.parse().unwrap_or(0))
        .min(MAX_USES)
}

fn token_kind(secret: &Secret) -> Option<&str> {
    secret
        .labels()
        .get(labels::PEERING_TOKEN)
        .map(String::as_str)
}

fn secret_has_token(secret: &Secret, presented: &str) -> bool {
    let Some(stored) = secret.data.as_ref().and_then(|data| data.get(TOKEN)) else {
        return false;
    };
    // An empty Secret matches nothing.
    if stored.0.is_empty() {
        return false;
    }
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"liqo peering token");
    hmac::verify(
        &key,
        presented.as_bytes(),
        hmac::sign(&key, &stored.0).as_ref(),
    )
    .is_ok()
}

/// A date that cannot be parsed has passed: a token must not live longer than its creator meant.
fn has_expired(secret: &Secret, now: Timestamp) -> bool {
    match secret
        .annotations()
        .get(annotations::EXPIRES_AT)
        .map(|text| text.parse::<Timestamp>())
    {
        None => false,
        Some(Ok(at)) => at <= now,
        Some(Err(_)) => true,
    }
}

/// The Secret that makes a token valid. `kind` is [`REUSABLE`] or [`ONE_TIME`].
#[cfg(test)]
pub fn token_secret(name: &str, kind: &str, token: &str, expires_at: Option<Timestamp>) -> Secret {
    use k8s_openapi::ByteString;
    use kube::api::ObjectMeta;
    use std::collections::BTreeMap;

    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([
                (labels::MANAGED.to_owned(), "true".to_owned()),
                (labels::PEERING_TOKEN.to_owned(), kind.to_owned()),
            ])),
            annotations: expires_at
                .map(|at| BTreeMap::from([(annotations::EXPIRES_AT.to_owned(), at.to_string())])),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(
            TOKEN.to_owned(),
            ByteString(token.as_bytes().to_vec()),
        )])),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-06-01T12:00:00Z".parse().unwrap()
    }

    fn rome() -> ClusterId {
        ClusterId::of_public_key(&[1; 32])
    }

    fn one_time(name: &str) -> TokenClaim {
        TokenClaim {
            name: name.into(),
            uid: "u1".into(),
            resource_version: "7".into(),
            is_claimed: false,
            is_reusable: false,
            used_by: rome().to_string(),
        }
    }

    fn stored(kind: &str, token: &str, expires: Option<&str>) -> Secret {
        let mut secret = token_secret("t1", kind, token, None);
        secret.metadata.resource_version = Some("7".into());
        secret.metadata.uid = Some("u1".into());
        if let Some(text) = expires {
            secret
                .annotations_mut()
                .insert(annotations::EXPIRES_AT.into(), text.into());
        }
        secret
    }

    fn reusable() -> TokenVerdict {
        TokenVerdict::Valid(TokenClaim {
            is_reusable: true,
            ..one_time("t1")
        })
    }

    #[test]
    fn the_right_token_opens() {
        assert_eq!(
            verdict_on_token(
                &[stored(REUSABLE, "abc", None)],
                Some("abc"),
                &rome(),
                now()
            ),
            reusable()
        );
        let verdict = verdict_on_token(
            &[stored(ONE_TIME, "abc", None)],
            Some("abc"),
            &rome(),
            now(),
        );
        assert_eq!(verdict, TokenVerdict::Valid(one_time("t1")));
    }

    #[test]
    fn a_one_time_token_that_a_cluster_uses_opens_to_no_other() {
        let mut claimed = stored(ONE_TIME, "abc", None);
        claimed
            .annotations_mut()
            .insert(annotations::USED_BY.into(), rome().to_string());
        let verdict = verdict_on_token(&[claimed.clone()], Some("abc"), &rome(), now());
        assert_eq!(
            verdict,
            TokenVerdict::Valid(TokenClaim {
                is_claimed: true,
                ..one_time("t1")
            })
        );
        let turin = ClusterId::of_public_key(&[2; 32]);
        assert_eq!(
            verdict_on_token(&[claimed], Some("abc"), &turin, now()),
            TokenVerdict::Unknown
        );
    }

    #[test]
    fn a_reusable_token_opens_to_as_many_clusters_as_it_is_for() {
        for (said, expected) in [
            (None, 10),
            (Some("3"), 3),
            (Some("100000"), 1000),
            (Some("many"), 0),
            (Some("0"), 0),
        ] {
            let mut token = stored(REUSABLE, "abc", None);
            if let Some(said) = said {
                token
                    .annotations_mut()
                    .insert(annotations::MAX_USES.into(), said.into());
            }
            let mut first = None;
            let mut uses = 0;
            for number in 0..1100_u16 {
                let mut key = [0; 32];
                key[..2].copy_from_slice(&number.to_be_bytes());
                let consumer = ClusterId::of_public_key(&key);
                match verdict_on_token(std::slice::from_ref(&token), Some("abc"), &consumer, now())
                {
                    TokenVerdict::Valid(claim) => {
                        token
                            .annotations_mut()
                            .insert(annotations::USED_BY.into(), claim.used_by);
                        first.get_or_insert(consumer);
                        uses += 1;
                    }
                    other => assert_eq!(other, TokenVerdict::UsedUp),
                }
            }
            assert_eq!(uses, expected, "{said:?}");
            // A cluster that uses the token already may use it again.
            if let Some(first) = first {
                let again = verdict_on_token(&[token], Some("abc"), &first, now());
                assert!(
                    matches!(
                        again,
                        TokenVerdict::Valid(TokenClaim {
                            is_claimed: true,
                            ..
                        })
                    ),
                    "{again:?}"
                );
            }
        }
    }

    #[test]
    fn a_wrong_token_does_not_open() {
        let secrets = [stored(REUSABLE, "abc", None)];
        for presented in ["", "ab", "abcd", "abd", "ABC"] {
            assert_eq!(
                verdict_on_token(&secrets, Some(presented), &rome(), now()),
                TokenVerdict::Unknown,
                "{presented:?}"
            );
        }
        assert_eq!(
            verdict_on_token::<Secret>(&[], Some("abc"), &rome(), now()),
            TokenVerdict::Unknown
        );
        assert_eq!(
            verdict_on_token(&secrets, None, &rome(), now()),
            TokenVerdict::Absent
        );
    }

    #[test]
    fn an_empty_secret_opens_to_nobody() {
        assert_eq!(
            verdict_on_token(&[stored(REUSABLE, "", None)], Some(""), &rome(), now()),
            TokenVerdict::Unknown
        );
        let mut secret = stored(REUSABLE, "abc", None);
        secret.data = None;
        assert_eq!(
            verdict_on_token(&[secret], Some(""), &rome(), now()),
            TokenVerdict::Unknown
        );
    }

    #[test]
    fn an_unknown_kind_of_token_does_not_open() {
        assert_eq!(
            verdict_on_token(
                &[stored("forever", "abc", None)],
                Some("abc"),
                &rome(),
                now()
            ),
            TokenVerdict::Unknown
        );
    }

    #[test]
    fn a_token_ends_at_its_date_and_a_date_that_cannot_be_read_has_passed() {
        assert_eq!(
            verdict_on_token(
                &[stored(REUSABLE, "abc", Some("2026-06-01T12:00:01Z"))],
                Some("abc"),
                &rome(),
                now()
            ),
            reusable()
        );
        assert_eq!(
            verdict_on_token(
                &[stored(REUSABLE, "abc", Some("2026-06-01T12:00:00Z"))],
                Some("abc"),
                &rome(),
                now()
            ),
            TokenVerdict::Expired
        );
        assert_eq!(
            verdict_on_token(
                &[stored(ONE_TIME, "abc", Some("tomorrow"))],
                Some("abc"),
                &rome(),
                now()
            ),
            TokenVerdict::Expired
        );
    }
}
