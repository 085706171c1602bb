//! The webhook's own CA and serving certificate, in a Secret that all replicas share.
//!
//! The CA stays the same when the serving certificate is renewed, so the API server trusts replicas
//! with the old certificate and with the new one.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use liqo_api::labels;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::SERVICE;
use crate::https_listener::{Certificate, ServingTlsError};

pub(super) const SECRET: &str = "liqo-webhook";
const CA: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const LEAF: &str = "tls.crt";
const LEAF_KEY: &str = "tls.key";

const DAY: SignedDuration = SignedDuration::from_hours(24);
const CA_DAYS: i32 = 3650;
const LEAF_DAYS: i32 = 365;
/// Other replicas may write at the same time; the second one uses what the first one wrote.
const ATTEMPTS: u32 = 5;

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("making the certificate of the admission webhook: {0}")]
    Make(#[from] rcgen::Error),
    #[error("{step} Secret {SECRET}: {source}")]
    Secret {
        step: &'static str,
        source: kube::Error,
    },
    /// Other writers replace it again and again.
    #[error(
        "Secret {SECRET} was changed by others {ATTEMPTS} times in a row; if it is not another manager, delete it"
    )]
    Contended,
}

/// CA, certificate and key, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct CertificateMaterial {
    pub(super) ca: String,
    ca_key: String,
    leaf: String,
    leaf_key: String,
}

impl CertificateMaterial {
    pub(super) fn certificate(&self) -> Result<Certificate, ServingTlsError> {
        let (chain, key) = self.parse_pem()?;
        Certificate::new(chain, key)
    }

    /// Makes a running listener use it.
    pub(super) fn put_into(&self, certificate: &Certificate) -> Result<(), ServingTlsError> {
        let (chain, key) = self.parse_pem()?;
        certificate.replace(chain, key)
    }

    fn parse_pem(
        &self,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), ServingTlsError> {
        let leaf = CertificateDer::from_pem_slice(self.leaf.as_bytes())
            .map_err(|error| unreadable_pem(&error))?;
        let key = PrivateKeyDer::from_pem_slice(self.leaf_key.as_bytes())
            .map_err(|error| unreadable_pem(&error))?;
        Ok((vec![leaf], key))
    }

    fn from_secret(secret: &Secret) -> Option<Self> {
        let data = secret.data.as_ref()?;
        Some(Self {
            ca: text_entry(data, CA)?,
            ca_key: text_entry(data, CA_KEY)?,
            leaf: text_entry(data, LEAF)?,
            leaf_key: text_entry(data, LEAF_KEY)?,
        })
    }

    fn into_data(self) -> BTreeMap<String, ByteString> {
        let entries = [
            (CA, self.ca),
            (CA_KEY, self.ca_key),
            (LEAF, self.leaf),
            (LEAF_KEY, self.leaf_key),
        ];
        entries
            .into_iter()
            .map(|(key, pem)| (key.to_owned(), ByteString(pem.into_bytes())))
            .collect()
    }
}

/// The name in the certificate that the API server verifies.
pub(super) fn dns_name(namespace: &str) -> String {
    format!("{SERVICE}.{namespace}.svc")
}

/// Reads the Secret; creates or renews its contents if necessary.
pub(super) async fn load_or_create(
    secrets: &Api<Secret>,
    namespace: &str,
    now: Timestamp,
) -> Result<CertificateMaterial, CertificateError> {
    let name = dns_name(namespace);
    for _ in 0..ATTEMPTS {
        let found = secrets
            .get_opt(SECRET)
            .await
            .map_err(|source| CertificateError::Secret {
                step: "reading",
                source,
            })?;
        let stored = found.as_ref().and_then(CertificateMaterial::from_secret);
        let wanted = match stored.map(|stored| (due_parts(&stored, &name, now), stored)) {
            Some((DueParts::Nothing, stored)) => return Ok(stored),
            Some((DueParts::Leaf, stored)) => make_material(Some(&stored), &name, now)?,
            Some((DueParts::All, _)) | None => make_material(None, &name, now)?,
        };
        let written = match found {
            None => {
                secrets
                    .create(&PostParams::default(), &certificate_secret(wanted.clone()))
                    .await
            }
            Some(mut found) => {
                // The resource version makes sure that it replaces only what was read.
                found.data = Some(wanted.clone().into_data());
                secrets
                    .replace(SECRET, &PostParams::default(), &found)
                    .await
            }
        };
        match written {
            Ok(_) => {
                tracing::info!(
                    secret = SECRET,
                    "made a certificate for the admission webhook"
                );
                return Ok(wanted);
            }
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {
            }
            Err(source) => {
                return Err(CertificateError::Secret {
                    step: "writing",
                    source,
                });
            }
        }
    }
    Err(CertificateError::Contended)
}

fn certificate_secret(material: CertificateMaterial) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(SECRET.into()),
            labels: Some([(labels::MANAGED.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some(material.into_data()),
        ..Secret::default()
    }
}

fn unreadable_pem(error: &rustls_pki_types::pem::Error) -> ServingTlsError {
    ServingTlsError::Certificate(rustls::Error::General(error.to_string()))
}

fn text_entry(data: &BTreeMap<String, ByteString>, key: &str) -> Option<String> {
    String::from_utf8(data.get(key)?.0.clone()).ok()
}

/// The parts that must be created.
#[derive(Debug, PartialEq, Eq)]
enum DueParts {
    Nothing,
    Leaf,
    All,
}

/// A certificate is renewed in the last third of its lifetime, or if it is not for this name.
fn due_parts(stored: &CertificateMaterial, name: &str, now: Timestamp) -> DueParts {
    let is_ca_good = is_fresh_and(&stored.ca, now, |certificate| certificate.is_ca())
        && KeyPair::from_pem(&stored.ca_key).is_ok();
    if !is_ca_good {
        return DueParts::All;
    }
    let is_leaf_good = is_fresh_and(&stored.leaf, now, |certificate| {
        is_certificate_for(certificate, name)
    }) && stored.certificate().is_ok();
    if is_leaf_good {
        DueParts::Nothing
    } else {
        DueParts::Leaf
    }
}

/// Whether a certificate is readable, not due for renewal, and passes the check.
fn is_fresh_and(pem: &str, now: Timestamp, check: impl Fn(&X509Certificate) -> bool) -> bool {
    let Ok(der) = CertificateDer::from_pem_slice(pem.as_bytes()) else {
        return false;
    };
    let Ok((_, certificate)) = X509Certificate::from_der(&der) else {
        return false;
    };
    let (begin, end) = (
        certificate.validity().not_before.timestamp(),
        certificate.validity().not_after.timestamp(),
    );
    end - now.as_second() > (end - begin) / 3 && check(&certificate)
}

fn is_certificate_for(certificate: &X509Certificate, name: &str) -> bool {
    let names = certificate.subject_alternative_name().ok().flatten();
    names.is_some_and(|names| {
        names
            .value
            .general_names
            .contains(&GeneralName::DNSName(name))
    })
}

/// A new serving certificate, signed by the current CA or by a new one.
fn make_material(
    stored: Option<&CertificateMaterial>,
    name: &str,
    now: Timestamp,
) -> Result<CertificateMaterial, rcgen::Error> {
    let (ca, ca_key) = match stored {
        Some(stored) => (stored.ca.clone(), stored.ca_key.clone()),
        None => make_authority(now)?,
    };
    let issuer = Issuer::from_ca_cert_pem(&ca, KeyPair::from_pem(&ca_key)?)?;
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new([name.to_owned()])?;
    params
        .distinguished_name
        .push(DnType::CommonName, "liqo-webhook");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, now, LEAF_DAYS);
    let leaf = params.signed_by(&key, &issuer)?.pem();
    Ok(CertificateMaterial {
        ca,
        ca_key,
        leaf,
        leaf_key: key.serialize_pem(),
    })
}

fn make_authority(now: Timestamp) -> Result<(String, String), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "liqo-webhook-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    set_validity(&mut params, now, CA_DAYS);
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// Valid since yesterday, because clocks differ.
fn set_validity(params: &mut CertificateParams, now: Timestamp, days: i32) {
    let day = |time: Timestamp| {
        let date = time.to_zoned(TimeZone::UTC).date();
        rcgen::date_time_ymd(
            date.year().into(),
            date.month().unsigned_abs(),
            date.day().unsigned_abs(),
        )
    };
    params.not_before = day(now.saturating_sub(DAY).unwrap_or(now));
    params.not_after = day(now.saturating_add(DAY * days).unwrap_or(now));
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "liqo-webhook.liqo.svc";

    fn at(time: &str) -> Timestamp {
        time.parse().unwrap()
    }

    fn fresh() -> CertificateMaterial {
        make_material(None, NAME, at("2026-01-01T00:00:00Z")).unwrap()
    }

    #[test]
    fn a_fresh_certificate_stays() {
        assert_eq!(
            due_parts(&fresh(), NAME, at("2026-08-01T00:00:00Z")),
            DueParts::Nothing
        );
    }

    #[test]
    fn the_serving_certificate_is_renewed_by_the_same_authority_before_it_ends() {
        let (old, later) = (fresh(), at("2026-10-01T00:00:00Z"));
        assert_eq!(due_parts(&old, NAME, later), DueParts::Leaf);
        let new = make_material(Some(&old), NAME, later).unwrap();
        assert_eq!((new.ca == old.ca, new.leaf == old.leaf), (true, false));
        assert_eq!(due_parts(&new, NAME, later), DueParts::Nothing);
    }

    #[test]
    fn the_authority_is_renewed_before_it_ends() {
        assert_eq!(
            due_parts(&fresh(), NAME, at("2033-01-01T00:00:00Z")),
            DueParts::All
        );
    }

    #[test]
    fn a_certificate_for_another_namespace_is_replaced() {
        assert_eq!(
            due_parts(
                &fresh(),
                "liqo-webhook.other.svc",
                at("2026-02-01T00:00:00Z")
            ),
            DueParts::Leaf
        );
    }

    #[test]
    fn a_spoilt_secret_is_replaced() {
        let now = at("2026-02-01T00:00:00Z");
        let spoilt = |change: fn(&mut CertificateMaterial)| {
            let mut material = fresh();
            change(&mut material);
            due_parts(&material, NAME, now)
        };
        assert_eq!(
            spoilt(|material| material.ca = "nonsense".into()),
            DueParts::All
        );
        assert_eq!(
            spoilt(|material| material.ca_key = String::new()),
            DueParts::All
        );
        assert_eq!(
            spoilt(|material| material.leaf = material.ca.clone()),
            DueParts::Leaf
        );
        assert_eq!(
            spoilt(|material| material.leaf_key = fresh().leaf_key),
            DueParts::Leaf
        );
        assert!(CertificateMaterial::from_secret(&Secret::default()).is_none());
    }
}
