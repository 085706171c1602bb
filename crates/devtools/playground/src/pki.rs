//! The certificates of a cluster. They never expire: these clusters are short-lived, and tests move
//! the clock.
//!
//! The API server's certificate may come from a second CA, to see what others do when it changes.
//! The programs of the cluster trust both from the beginning; pods and other clusters learn of the
//! second one when it is published.

use std::{fs, os::unix::fs::OpenOptionsExt, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

use crate::{
    error::{Error, Result},
    layout::{API_SERVICE_ADDRESS, ClusterLayout, NodeLayout},
    objects::{KUBE_ROUTER_USER, KWOK_USER},
};

#[derive(Debug, PartialEq, Eq)]
struct Leaf {
    /// Name of the files, without `.crt` and `.key`.
    file: String,
    /// `ca`, `next-ca` or `front-proxy-ca`.
    issuer: &'static str,
    common_name: String,
    organization: Option<&'static str>,
    /// Names and addresses; a server certificate if there are any.
    alternative_names: Vec<String>,
}

impl Leaf {
    fn client(
        file: impl Into<String>,
        common_name: impl Into<String>,
        organization: Option<&'static str>,
    ) -> Self {
        Self {
            file: file.into(),
            issuer: "ca",
            common_name: common_name.into(),
            organization,
            alternative_names: Vec::new(),
        }
    }
}

fn addresses(node: &NodeLayout) -> impl Iterator<Item = String> {
    node.addresses()
        .into_iter()
        .map(|address| address.to_string())
}

/// The certificate of the API server.
fn api_server(cluster: &ClusterLayout, file: &str, issuer: &'static str) -> Leaf {
    let names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        &format!("kubernetes.default.svc.{}", cluster.spec.cluster_domain),
        "localhost",
        "127.0.0.1",
        API_SERVICE_ADDRESS,
    ]
    .map(str::to_owned);
    Leaf {
        issuer,
        alternative_names: names
            .into_iter()
            .chain(addresses(&cluster.nodes[0]))
            .collect(),
        ..Leaf::client(file, "kube-apiserver", None)
    }
}

fn leaves(cluster: &ClusterLayout) -> Vec<Leaf> {
    let mut leaves = vec![
        api_server(cluster, "apiserver", "ca"),
        api_server(cluster, "next-apiserver", "next-ca"),
        Leaf::client(
            "apiserver-kubelet-client",
            "kube-apiserver-kubelet-client",
            None,
        ),
        Leaf {
            issuer: "front-proxy-ca",
            ..Leaf::client("front-proxy-client", "front-proxy-client", None)
        },
        Leaf::client("admin", "kubernetes-admin", Some("system:masters")),
        Leaf::client("controller-manager", "system:kube-controller-manager", None),
        Leaf::client("scheduler", "system:kube-scheduler", None),
        Leaf::client("kube-proxy", "system:kube-proxy", None),
    ];
    if cluster.has_fake_nodes() {
        leaves.push(Leaf::client("kwok", KWOK_USER, None));
    }
    if cluster.spec.network_policies {
        leaves.push(Leaf::client("kube-router", KUBE_ROUTER_USER, None));
    }
    for node in &cluster.nodes {
        let name = format!("system:node:{}", node.name);
        leaves.push(Leaf::client(
            format!("{}-client", node.name),
            &name,
            Some("system:nodes"),
        ));
        leaves.push(Leaf {
            // The API server dials the address, so that one must be in the certificate.
            alternative_names: std::iter::once(node.name.clone())
                .chain(addresses(node))
                .collect(),
            ..Leaf::client(format!("{}-server", node.name), &name, Some("system:nodes"))
        });
    }
    leaves
}

/// Creates missing files in the cluster's `pki` directory.
pub(crate) fn issue(cluster: &ClusterLayout) -> Result<()> {
    let directory = cluster.dir.join("pki");
    fs::create_dir_all(&directory).map_err(Error::file("create", &directory))?;
    for authority in ["ca", "next-ca", "front-proxy-ca"] {
        if !cluster.pki(&format!("{authority}.crt")).exists() {
            let key = generate(authority)?;
            let certificate = authority_params(&cluster.name, authority)
                .self_signed(&key)
                .map_err(failed(authority))?;
            write_secret(
                &cluster.pki(&format!("{authority}.key")),
                &key.serialize_pem(),
            )?;
            write(
                &cluster.pki(&format!("{authority}.crt")),
                &certificate.pem(),
            )?;
        }
    }
    if !cluster.pki("sa.pub").exists() {
        let key = generate("service accounts")?;
        write_secret(&cluster.pki("sa.key"), &key.serialize_pem())?;
        write(&cluster.pki("sa.pub"), &key.public_key_pem())?;
    }
    for leaf in leaves(cluster) {
        let certificate = cluster.pki(&format!("{}.crt", leaf.file));
        if certificate.exists() {
            continue;
        }
        let issuer_key = read(&cluster.pki(&format!("{}.key", leaf.issuer)))?;
        let issuer_key = KeyPair::from_pem(&issuer_key).map_err(failed(leaf.issuer))?;
        let issuer = Issuer::new(authority_params(&cluster.name, leaf.issuer), issuer_key);
        let key = generate(&leaf.common_name)?;
        let signed = leaf_params(&leaf)?
            .signed_by(&key, &issuer)
            .map_err(failed(&leaf.common_name))?;
        write_secret(
            &cluster.pki(&format!("{}.key", leaf.file)),
            &key.serialize_pem(),
        )?;
        // The certificate is written last: where it exists, its key exists, too.
        write(&certificate, &signed.pem())?;
    }
    Ok(())
}

/// The CA certificates with which the programs of the cluster verify its API server.
pub(crate) fn trusted(cluster: &ClusterLayout) -> Result<String> {
    Ok(read(&cluster.pki("ca.crt"))? + &read(&cluster.pki("next-ca.crt"))?)
}

/// Whether the certificate of the API server comes from the second CA.
pub(crate) fn uses_next_ca(cluster: &ClusterLayout) -> Result<bool> {
    Ok(read(&cluster.pki("apiserver.crt"))? == read(&cluster.pki("next-apiserver.crt"))?)
}

/// Replaces the certificate of the API server by one of its second CA, or of the first one again.
pub(crate) fn certify_api_server(cluster: &ClusterLayout, next: bool) -> Result<()> {
    if !next {
        crate::files::remove(&cluster.pki("apiserver.crt"))?;
        return issue(cluster);
    }
    for file in ["apiserver.key", "apiserver.crt"] {
        crate::files::write(
            &cluster.pki(file),
            &read(&cluster.pki(&format!("next-{file}")))?,
        )?;
    }
    Ok(())
}

/// Writes the CA certificates that pods verify the API server with: those of both CAs, or of the
/// first one.
pub(crate) fn publish(cluster: &ClusterLayout, both: bool) -> Result<()> {
    let certificates = if both {
        trusted(cluster)?
    } else {
        read(&cluster.pki("ca.crt"))?
    };
    crate::files::write(&cluster.pki("root-ca.crt"), &certificates)
}

fn authority_params(cluster: &str, authority: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished_name(&format!("{cluster}-{authority}"), None);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::CrlSign,
    ];
    params
}

fn leaf_params(leaf: &Leaf) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(leaf.alternative_names.clone())
        .map_err(failed(&leaf.common_name))?;
    params.distinguished_name = distinguished_name(&leaf.common_name, leaf.organization);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let usage = if leaf.alternative_names.is_empty() {
        ExtendedKeyUsagePurpose::ClientAuth
    } else {
        ExtendedKeyUsagePurpose::ServerAuth
    };
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

fn distinguished_name(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name
}

fn generate(subject: &str) -> Result<KeyPair> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(failed(subject))
}

fn failed(subject: &str) -> impl FnOnce(rcgen::Error) -> Error {
    move |source| Error::Certificate {
        subject: subject.to_owned(),
        source,
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(Error::file("read", path))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(Error::file("write", path))
}

fn write_secret(path: &Path, text: &str) -> Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .map_err(Error::file("write", path))?;
    std::io::Write::write_all(&mut file, text.as_bytes()).map_err(Error::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        layout::{ClusterState, Instance},
        spec::ClusterSpec,
    };

    fn cluster(nodes: Vec<u8>) -> ClusterLayout {
        let state = ClusterState {
            spec: ClusterSpec::new("rome"),
            nodes,
        };
        Instance::new("test").unwrap().layout(7, &state)
    }

    #[test]
    fn every_node_gets_a_server_certificate_for_its_address() {
        let leaves = leaves(&cluster(vec![10, 12]));
        let second = leaves
            .iter()
            .find(|leaf| leaf.file == "rome-2-server")
            .unwrap();
        assert_eq!(second.common_name, "system:node:rome-2");
        assert!(second.alternative_names.contains(&"172.30.7.12".to_owned()));
    }

    #[test]
    fn the_api_server_has_a_name_in_the_domain_of_the_cluster() {
        let spec = ClusterSpec {
            cluster_domain: "rome.example".to_owned(),
            ..ClusterSpec::new("rome")
        };
        let layout = Instance::new("test").unwrap().layout(
            7,
            &ClusterState {
                spec,
                nodes: vec![10],
            },
        );
        let leaves = leaves(&layout);
        let api_server = leaves.iter().find(|leaf| leaf.file == "apiserver").unwrap();
        assert!(
            api_server
                .alternative_names
                .contains(&"kubernetes.default.svc.rome.example".to_owned())
        );
    }

    #[test]
    fn both_certificates_of_the_api_server_are_for_the_same_names() {
        let leaves = leaves(&cluster(vec![10]));
        let of = |file: &str| leaves.iter().find(|leaf| leaf.file == file).unwrap();
        let (first, next) = (of("apiserver"), of("next-apiserver"));
        assert_eq!((first.issuer, next.issuer), ("ca", "next-ca"));
        assert_eq!(first.alternative_names, next.alternative_names);
    }

    #[test]
    fn only_the_admin_is_a_master() {
        let masters = leaves(&cluster(vec![10]))
            .into_iter()
            .filter(|leaf| leaf.organization == Some("system:masters"));
        assert_eq!(masters.map(|leaf| leaf.file).collect::<Vec<_>>(), ["admin"]);
    }
}
