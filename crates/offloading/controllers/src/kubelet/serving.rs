//! The serving certificate of a virtual node's kubelet API, signed by the home cluster like those
//! of its kubelets.
//!
//! The signer `kubernetes.io/kubelet-serving` signs whatever is approved, so before it approves a
//! request, the manager compares every field with what it sent. If nobody signs in time, the
//! certificate stays self-signed, and a condition says so: `kubectl logs` then fails in clusters
//! that verify their kubelets.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use liqo_api::labels;
use liqo_controller_runtime::Context;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData as _, SanType};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::{
    FromDer as _, GeneralName, ParsedExtension, X509Certificate, X509CertificationRequest,
};

use crate::https_listener::{Certificate, ServingTlsError};

/// The signer for serving certificates of kubelets.
const SIGNER: &str = "kubernetes.io/kubelet-serving";
/// The usages of the certificate; the signer accepts no others.
const USAGES: [&str; 2] = ["digital signature", "server auth"];
const LIFETIME: Duration = Duration::from_hours(24);
const SIGNER_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Delay before the next request after the signer did not sign.
const RETRY_DELAY: Duration = Duration::from_mins(10);

/// The owner of the certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeIdentity {
    pub node: String,
    /// The Node's address, at which the API server calls.
    pub address: IpAddr,
}

/// The state of the certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateState {
    Signed,
    /// Self-signed, for this reason.
    SelfSigned(String),
}

#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    #[error("making a key and certificate request for node {node}: {source}")]
    Make { node: String, source: rcgen::Error },
    /// The certificate cannot be used for TLS.
    #[error(transparent)]
    Tls(#[from] ServingTlsError),
    #[error("{step} for node {node}: {source}")]
    Api {
        step: &'static str,
        node: String,
        source: kube::Error,
    },
    #[error("the certificate request of node {node} is not the one that this process sent ({0}); it is not approved", node = .1)]
    NotOurs(RequestDifference, String),
    #[error("signer {SIGNER} did not sign for node {node} in {} s: is kube-controller-manager running with a signing CA?", SIGNER_TIMEOUT.as_secs())]
    NotSigned { node: String },
    #[error("signer {SIGNER} refused to sign for node {node}: {message}")]
    Refused { node: String, message: String },
}

fn not_made_for(identity: &NodeIdentity) -> impl FnOnce(rcgen::Error) -> ServingError {
    |source| ServingError::Make {
        node: identity.node.clone(),
        source,
    }
}

fn step_failed(
    step: &'static str,
    identity: &NodeIdentity,
) -> impl FnOnce(kube::Error) -> ServingError {
    move |source| ServingError::Api {
        step,
        node: identity.node.clone(),
        source,
    }
}

/// A self-signed certificate for the start.
pub fn self_signed(identity: &NodeIdentity) -> Result<Certificate, ServingError> {
    let key = KeyPair::generate().map_err(not_made_for(identity))?;
    let certificate = certificate_params(identity)
        .self_signed(&key)
        .map_err(not_made_for(identity))?;
    Ok(Certificate::new(
        vec![certificate.der().clone()],
        private_key(&key),
    )?)
}

/// Renews the certificate until `stop`: requests one, renews it after two thirds of its lifetime,
/// and requests it again if nobody signed. Calls `report` with each change of the state.
pub async fn keep_signed(
    context: Context,
    identity: NodeIdentity,
    certificate: Arc<Certificate>,
    report: impl Fn(CertificateState),
    stop: CancellationToken,
) {
    let mut last = None;
    let mut lasts_until = Instant::now();
    loop {
        let signed = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            signed = replace_with_signed(&context, &identity, &certificate) => signed,
        };
        let (state, next) = match signed {
            Ok(life) => {
                lasts_until = Instant::now() + life;
                (CertificateState::Signed, life / 3 * 2)
            }
            Err(error) if Instant::now() < lasts_until => {
                tracing::warn!(node = identity.node, %error, "certificate of the kubelet API not renewed yet");
                (CertificateState::Signed, RETRY_DELAY)
            }
            Err(error) => (CertificateState::SelfSigned(error.to_string()), RETRY_DELAY),
        };
        if last.as_ref() != Some(&state) {
            tracing::info!(
                node = identity.node,
                ?state,
                "certificate of the kubelet API"
            );
            report(state.clone());
            last = Some(state);
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(next) => {}
        }
    }
}

/// Gets a certificate signed and uses it. Returns its remaining lifetime.
async fn replace_with_signed(
    context: &Context,
    identity: &NodeIdentity,
    certificate: &Certificate,
) -> Result<Duration, ServingError> {
    let (reviews, requests): (Api<SelfSubjectReview>, Api<CertificateSigningRequest>) = (
        Api::all(context.client.clone()),
        Api::all(context.client.clone()),
    );

    let ourselves = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
        .map_err(step_failed("asking who we are", identity))?;
    let user = ourselves
        .status
        .and_then(|status| status.user_info?.username)
        .unwrap_or_default();
    let key = KeyPair::generate().map_err(not_made_for(identity))?;
    let request = certificate_request(identity, &key).map_err(not_made_for(identity))?;
    let created = requests
        .create(&PostParams::default(), &request)
        .await
        .map_err(step_failed("creating the certificate request", identity))?;

    let outcome = async {
        is_exactly_ours(&created, identity, &user, &key.subject_public_key_info())
            .map_err(|difference| ServingError::NotOurs(difference, identity.node.clone()))?;
        let name = created.name_any();
        let approved = with_approval(created.clone());
        requests
            .replace_subresource("approval", &name, &PostParams::default(), &approved)
            .await
            .map_err(step_failed("approving the certificate request", identity))?;
        tokio::time::timeout(
            SIGNER_TIMEOUT,
            await_certificate(&requests, &name, identity),
        )
        .await
        .map_err(|_| ServingError::NotSigned {
            node: identity.node.clone(),
        })?
    }
    .await;
    // The request is no longer needed, and would distract users who look for other requests.
    if let Err(error) = requests
        .delete(&created.name_any(), &DeleteParams::default())
        .await
    {
        tracing::debug!(request = created.name_any(), %error, "certificate request left to the cluster's own cleaner");
    }
    let chain = outcome?;
    let life = chain
        .first()
        .and_then(|first| remaining_lifetime(first, context.now()))
        .unwrap_or(LIFETIME);
    certificate.replace(chain, private_key(&key))?;
    Ok(life)
}

async fn await_certificate(
    requests: &Api<CertificateSigningRequest>,
    name: &str,
    identity: &NodeIdentity,
) -> Result<Vec<CertificateDer<'static>>, ServingError> {
    loop {
        let request = requests
            .get(name)
            .await
            .map_err(step_failed("reading the certificate request", identity))?;
        let status = request.status.unwrap_or_default();
        if let Some(no) = status
            .conditions
            .iter()
            .flatten()
            .find(|condition| ["Failed", "Denied"].contains(&condition.type_.as_str()))
        {
            return Err(ServingError::Refused {
                node: identity.node.clone(),
                message: no.message.clone().unwrap_or_default(),
            });
        }
        if let Some(ByteString(pem)) = status.certificate {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
            return chain.ok().filter(|chain| !chain.is_empty()).ok_or_else(|| {
                ServingError::Refused {
                    node: identity.node.clone(),
                    message: "its certificate cannot be read".into(),
                }
            });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The remaining lifetime of a certificate.
fn remaining_lifetime(certificate: &CertificateDer<'static>, now: Timestamp) -> Option<Duration> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let seconds = certificate.validity().not_after.timestamp() - now.as_second();
    u64::try_from(seconds).ok().map(Duration::from_secs)
}

fn certificate_params(identity: &NodeIdentity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "system:nodes");
    params
        .distinguished_name
        .push(DnType::CommonName, format!("system:node:{}", identity.node));
    params.subject_alt_names = vec![SanType::IpAddress(identity.address)];
    params
}

fn certificate_request(
    identity: &NodeIdentity,
    key: &KeyPair,
) -> Result<CertificateSigningRequest, rcgen::Error> {
    let pem = certificate_params(identity).serialize_request(key)?.pem()?;
    Ok(CertificateSigningRequest {
        metadata: ObjectMeta {
            generate_name: Some(format!("liqo-{}-", identity.node)),
            labels: Some([(labels::MANAGED.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: SIGNER.into(),
            usages: Some(USAGES.map(str::to_owned).to_vec()),
            expiration_seconds: i32::try_from(LIFETIME.as_secs()).ok(),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    })
}

fn with_approval(mut request: CertificateSigningRequest) -> CertificateSigningRequest {
    let conditions = &mut request.status.get_or_insert_default().conditions;
    conditions
        .get_or_insert_default()
        .push(CertificateSigningRequestCondition {
        type_: "Approved".into(),
        status: "True".into(),
        reason: Some("LiqoVirtualNode".into()),
        message: Some(
            "the kubelet API of a virtual node asked for it, with exactly its own name and address"
                .into(),
        ),
        ..CertificateSigningRequestCondition::default()
    });
    request
}

/// The difference between a certificate request and ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestDifference {
    #[error("another signer")]
    Signer,
    #[error("another requester")]
    User,
    #[error("other usages")]
    Usages,
    #[error("unreadable")]
    Unreadable,
    /// The subject is not `O=system:nodes, CN=system:node:<node>`.
    #[error("another subject")]
    Subject,
    /// The alternative names are not only the node's address.
    #[error("other alternative names")]
    AlternativeNames,
    #[error("further extensions")]
    Extensions,
    #[error("another key")]
    Key,
}

fn demand_that(holds: bool, difference: RequestDifference) -> Result<(), RequestDifference> {
    if holds { Ok(()) } else { Err(difference) }
}

/// Checks that a request is the one that we sent for this node: from this user, for this key,
/// subject, address, usages and signer, and nothing more.
pub fn is_exactly_ours(
    request: &CertificateSigningRequest,
    identity: &NodeIdentity,
    user: &str,
    public_key: &[u8],
) -> Result<(), RequestDifference> {
    let spec = &request.spec;
    demand_that(spec.signer_name == SIGNER, RequestDifference::Signer)?;
    demand_that(
        !user.is_empty() && spec.username.as_deref() == Some(user),
        RequestDifference::User,
    )?;
    let mut usages: Vec<&str> = spec.usages.iter().flatten().map(String::as_str).collect();
    usages.sort_unstable();
    demand_that(usages == USAGES, RequestDifference::Usages)?;

    let (_, pem) = x509_parser::pem::parse_x509_pem(&spec.request.0)
        .map_err(|_| RequestDifference::Unreadable)?;
    let (rest, parsed) = X509CertificationRequest::from_der(&pem.contents)
        .map_err(|_| RequestDifference::Unreadable)?;
    demand_that(rest.is_empty(), RequestDifference::Unreadable)?;
    let info = &parsed.certification_request_info;
    demand_that(info.subject_pki.raw == public_key, RequestDifference::Key)?;

    let subject = &info.subject;
    let organisations: Vec<_> = subject
        .iter_organization()
        .filter_map(|one| one.as_str().ok())
        .collect();
    let names: Vec<_> = subject
        .iter_common_name()
        .filter_map(|one| one.as_str().ok())
        .collect();
    let exact = subject.iter_attributes().count() == 2
        && organisations == ["system:nodes"]
        && names == [format!("system:node:{}", identity.node)];
    demand_that(exact, RequestDifference::Subject)?;

    let extensions: Vec<&ParsedExtension> = parsed
        .requested_extensions()
        .into_iter()
        .flatten()
        .collect();
    let [ParsedExtension::SubjectAlternativeName(alternative)] = extensions[..] else {
        return Err(if extensions.len() > 1 {
            RequestDifference::Extensions
        } else {
            RequestDifference::AlternativeNames
        });
    };
    let address = match identity.address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    demand_that(
        alternative.general_names == [GeneralName::IPAddress(&address)],
        RequestDifference::AlternativeNames,
    )
}

fn private_key(key: &KeyPair) -> PrivateKeyDer<'static> {
    PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: &str = "system:serviceaccount:liqo:liqo-controller-manager";

    fn identity() -> NodeIdentity {
        NodeIdentity {
            node: "milan".into(),
            address: "10.0.0.5".parse().unwrap(),
        }
    }

    /// The difference that is found in a request with changed parameters, which is then changed as
    /// an object.
    fn checked(
        params_changed: impl Fn(&mut CertificateParams),
        object_changed: impl Fn(&mut CertificateSigningRequest),
    ) -> Result<(), RequestDifference> {
        let key = KeyPair::generate().unwrap();
        let mut made = certificate_request(&identity(), &key).unwrap();
        let mut params = certificate_params(&identity());
        params_changed(&mut params);
        made.spec.request = ByteString(
            params
                .serialize_request(&key)
                .unwrap()
                .pem()
                .unwrap()
                .into_bytes(),
        );
        made.spec.username = Some(USER.into());
        object_changed(&mut made);
        is_exactly_ours(&made, &identity(), USER, &key.subject_public_key_info())
    }

    #[test]
    fn our_own_request_is_ours() {
        assert_eq!(checked(|_| (), |_| ()), Ok(()));
    }

    #[test]
    fn a_request_of_another_user_is_not() {
        assert_eq!(
            checked(
                |_| (),
                |made| made.spec.username = Some("system:admin".into())
            ),
            Err(RequestDifference::User)
        );
        assert_eq!(
            checked(|_| (), |made| made.spec.username = None),
            Err(RequestDifference::User)
        );
    }

    #[test]
    fn a_request_for_another_name_is_not() {
        assert_eq!(
            checked(
                |params| params
                    .distinguished_name
                    .push(DnType::CommonName, "system:node:n1"),
                |_| ()
            ),
            Err(RequestDifference::Subject)
        );
        assert_eq!(
            checked(
                |params| params
                    .distinguished_name
                    .push(DnType::OrganizationName, "system:masters"),
                |_| ()
            ),
            Err(RequestDifference::Subject)
        );
        assert_eq!(
            checked(
                |params| params.distinguished_name.push(DnType::CountryName, "IT"),
                |_| ()
            ),
            Err(RequestDifference::Subject)
        );
    }

    #[test]
    fn a_request_with_other_alternative_names_is_not() {
        let with = |names: Vec<SanType>| {
            checked(|params| params.subject_alt_names.clone_from(&names), |_| ())
        };
        let ours = SanType::IpAddress("10.0.0.5".parse().unwrap());
        assert_eq!(with(vec![]), Err(RequestDifference::AlternativeNames));
        assert_eq!(
            with(vec![SanType::IpAddress("10.0.0.6".parse().unwrap())]),
            Err(RequestDifference::AlternativeNames)
        );
        assert_eq!(
            with(vec![
                ours.clone(),
                SanType::DnsName("kubernetes.default.svc".try_into().unwrap())
            ]),
            Err(RequestDifference::AlternativeNames)
        );
        assert_eq!(
            with(vec![ours.clone(), ours]),
            Err(RequestDifference::AlternativeNames)
        );
    }

    #[test]
    fn a_request_with_other_usages_or_signer_is_not() {
        assert_eq!(
            checked(
                |_| (),
                |made| made
                    .spec
                    .usages
                    .get_or_insert_default()
                    .push("client auth".into())
            ),
            Err(RequestDifference::Usages)
        );
        assert_eq!(
            checked(
                |_| (),
                |made| made.spec.signer_name = "kubernetes.io/kube-apiserver-client".into()
            ),
            Err(RequestDifference::Signer)
        );
    }

    #[test]
    fn a_request_with_further_extensions_is_not() {
        assert_eq!(
            checked(
                |params| params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign],
                |_| ()
            ),
            Err(RequestDifference::Extensions)
        );
    }

    #[test]
    fn a_request_for_another_key_is_not() {
        let other = certificate_request(&identity(), &KeyPair::generate().unwrap()).unwrap();
        assert_eq!(
            checked(
                |_| (),
                |made| made.spec.request = other.spec.request.clone()
            ),
            Err(RequestDifference::Key)
        );
    }

    #[test]
    fn a_request_that_cannot_be_read_is_not() {
        assert_eq!(
            checked(
                |_| (),
                |made| made.spec.request = ByteString(b"nonsense".to_vec())
            ),
            Err(RequestDifference::Unreadable)
        );
    }

    #[test]
    fn the_request_says_what_the_signer_wants() {
        let made = certificate_request(&identity(), &KeyPair::generate().unwrap()).unwrap();
        assert_eq!(made.spec.signer_name, "kubernetes.io/kubelet-serving");
        assert_eq!(
            made.spec.usages.unwrap(),
            ["digital signature", "server auth"]
        );
        assert_eq!(made.spec.expiration_seconds, Some(86_400));
    }
}
