//! The programs of a cluster and their command lines. Pure: layout in, definitions out.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{
    binaries::Programs,
    kwok,
    layout::{ClusterLayout, NodeLayout},
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Definition {
    pub cluster: String,
    /// The program's name, followed by `@NODE` on every node except the first.
    pub component: String,
    pub command: Vec<String>,
    pub log: PathBuf,
    pub namespace: String,
    /// Distinguishes the namespace from an earlier one of the same name.
    pub namespace_inode: u64,
    /// It exits if the API server does not answer, so it starts only once the API server is ready.
    pub needs_api: bool,
    /// It fails without this file, which is written while the cluster comes up.
    pub needs_file: Option<PathBuf>,
    /// Number of processors that it uses at a time; by default all.
    #[serde(default)]
    pub processors: Option<u8>,
}

/// Programs that run on every real node.
pub(crate) const ON_NODES: [&str; 4] = ["containerd", "kubelet", "kube-proxy", KUBE_ROUTER];
/// Enforces `NetworkPolicies`.
pub(crate) const KUBE_ROUTER: &str = "kube-router";
/// Simulates the kubelets of fake nodes.
pub(crate) const KWOK: &str = "kwok";

/// All programs of a cluster, in the order in which they start.
pub(crate) fn definitions(cluster: &ClusterLayout, programs: &Programs) -> Vec<Definition> {
    let control_plane =
        |component: &str, needs_api: bool, program: &Path, flags: Vec<String>| Definition {
            cluster: cluster.name.clone(),
            component: component.to_owned(),
            command: command(program, flags),
            log: cluster.log(component),
            namespace: cluster.nodes[0].namespace.clone(),
            namespace_inode: 0,
            needs_api,
            needs_file: None,
            processors: cluster.spec.processors,
        };
    let mut all = vec![
        control_plane("etcd", false, &programs.etcd, etcd(cluster)),
        control_plane(
            "kube-apiserver",
            false,
            &programs.kube_apiserver,
            kube_apiserver(cluster),
        ),
        control_plane(
            "kube-controller-manager",
            true,
            &programs.kube_controller_manager,
            kube_controller_manager(cluster),
        ),
        control_plane(
            "kube-scheduler",
            true,
            &programs.kube_scheduler,
            kube_scheduler(cluster),
        ),
    ];
    if let (Some(program), true) = (&programs.kwok, cluster.has_fake_nodes()) {
        all.push(control_plane(KWOK, true, program, kwok(cluster)));
    }
    for node in &cluster.nodes {
        let on_node = |program_name: &str, needs_api: bool, program: &Path, flags: Vec<String>| {
            let component = node.component(program_name);
            Definition {
                cluster: cluster.name.clone(),
                command: command(program, flags),
                log: cluster.log(&component),
                namespace: node.namespace.clone(),
                namespace_inode: 0,
                needs_api,
                needs_file: None,
                processors: cluster.spec.processors,
                component,
            }
        };
        let kubelet = on_node("kubelet", true, &programs.kubelet, kubelet(cluster, node));
        all.push(on_node(
            "containerd",
            false,
            &programs.containerd,
            vec![flag("config", node.dir.join("containerd.toml"))],
        ));
        // A kubelet that finds no pod network tries again only after seconds.
        all.push(Definition {
            needs_file: Some(node.cni_file()),
            ..kubelet
        });
        all.push(on_node(
            "kube-proxy",
            true,
            &programs.kube_proxy,
            kube_proxy(cluster, node),
        ));
        if let (Some(program), true) = (&programs.kube_router, cluster.spec.network_policies) {
            let kube_router = on_node(KUBE_ROUTER, true, program, kube_router(cluster, node));
            // It exits if its node does not exist yet.
            all.push(Definition {
                needs_file: Some(node.cni_file()),
                ..kube_router
            });
        }
    }
    all
}

fn command(program: &Path, flags: Vec<String>) -> Vec<String> {
    std::iter::once(program.display().to_string())
        .chain(flags)
        .collect()
}

fn flag(name: &str, path: impl AsRef<Path>) -> String {
    format!("--{name}={}", path.as_ref().display())
}

fn etcd(cluster: &ClusterLayout) -> Vec<String> {
    let mut flags = vec![flag("data-dir", cluster.dir.join("etcd"))];
    flags.extend(
        [
            "--name=default",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--initial-advertise-peer-urls=http://127.0.0.1:2380",
            "--initial-cluster=default=http://127.0.0.1:2380",
            // A power cut may lose the cluster; `up` creates it again.
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]
        .map(str::to_owned),
    );
    flags
}

fn kube_apiserver(cluster: &ClusterLayout) -> Vec<String> {
    let pki = |name: &str, file: &str| flag(name, cluster.pki(file));
    let mut flags = vec![
        format!("--advertise-address={}", cluster.address()),
        pki("client-ca-file", "ca.crt"),
        pki("tls-cert-file", "apiserver.crt"),
        pki("tls-private-key-file", "apiserver.key"),
        pki("kubelet-certificate-authority", "ca.crt"),
        pki("kubelet-client-certificate", "apiserver-kubelet-client.crt"),
        pki("kubelet-client-key", "apiserver-kubelet-client.key"),
        pki("service-account-key-file", "sa.pub"),
        pki("service-account-signing-key-file", "sa.key"),
        pki("requestheader-client-ca-file", "front-proxy-ca.crt"),
        pki("proxy-client-cert-file", "front-proxy-client.crt"),
        pki("proxy-client-key-file", "front-proxy-client.key"),
        flag("audit-policy-file", cluster.dir.join("audit-policy.json")),
        flag("audit-log-path", cluster.audit_log()),
        format!("--service-cluster-ip-range={}", cluster.service_ranges()),
        format!(
            "--service-account-issuer=https://kubernetes.default.svc.{}",
            cluster.spec.cluster_domain
        ),
    ];
    flags.extend(
        [
            "--secure-port=6443",
            "--etcd-servers=http://127.0.0.1:2379",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            // Names of nodes do not resolve here.
            "--kubelet-preferred-address-types=InternalIP",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            "--enable-aggregator-routing=true",
            "--audit-log-maxsize=200",
            "--audit-log-maxbackup=1",
            "--shutdown-delay-duration=0",
        ]
        .map(str::to_owned),
    );
    flags
}

fn kube_controller_manager(cluster: &ClusterLayout) -> Vec<String> {
    let kubeconfig = cluster.dir.join("controller-manager.kubeconfig");
    let mut flags = vec![
        flag("kubeconfig", &kubeconfig),
        flag("authentication-kubeconfig", &kubeconfig),
        flag("authorization-kubeconfig", &kubeconfig),
        flag("root-ca-file", cluster.pki("root-ca.crt")),
        flag("cluster-signing-cert-file", cluster.pki("ca.crt")),
        flag("cluster-signing-key-file", cluster.pki("ca.key")),
        flag("service-account-private-key-file", cluster.pki("sa.key")),
        format!("--cluster-cidr={}", cluster.pod_ranges()),
        format!("--service-cluster-ip-range={}", cluster.service_ranges()),
    ];
    flags.extend(
        [
            "--bind-address=127.0.0.1",
            "--use-service-account-credentials=true",
            // There is only one instance, and the Lease would cost a write every two seconds.
            "--leader-elect=false",
        ]
        .map(str::to_owned),
    );
    // The first flag is valid only with one family, the other two only with both.
    let sizes: &[&str] = if cluster.spec.dual_stack {
        &[
            "--node-cidr-mask-size-ipv4=24",
            "--node-cidr-mask-size-ipv6=64",
        ]
    } else {
        &["--node-cidr-mask-size=24"]
    };
    flags.extend(sizes.iter().map(|size| (*size).to_owned()));
    // The pod range is too small for many fake nodes, which need no ranges; real nodes have theirs
    // already.
    flags.push(format!(
        "--allocate-node-cidrs={}",
        !cluster.has_fake_nodes()
    ));
    if let Some(seconds) = cluster.spec.node_grace_seconds {
        flags.push(format!("--node-monitor-grace-period={seconds}s"));
        flags.push("--node-monitor-period=1s".to_owned());
    }
    flags.extend(raised_client_limits(cluster));
    flags
}

fn kwok(cluster: &ClusterLayout) -> Vec<String> {
    let mut flags = vec![
        flag("kubeconfig", cluster.dir.join("kwok.kubeconfig")),
        flag("config", cluster.dir.join("kwok.yaml")),
    ];
    flags.extend(kwok::flags(&cluster.spec));
    flags
}

fn kube_scheduler(cluster: &ClusterLayout) -> Vec<String> {
    let kubeconfig = cluster.dir.join("scheduler.kubeconfig");
    let mut flags = vec![
        flag("kubeconfig", &kubeconfig),
        flag("authentication-kubeconfig", &kubeconfig),
        flag("authorization-kubeconfig", &kubeconfig),
        "--bind-address=127.0.0.1".to_owned(),
        "--leader-elect=false".to_owned(),
    ];
    flags.extend(raised_client_limits(cluster));
    flags
}

fn raised_client_limits(cluster: &ClusterLayout) -> Vec<String> {
    if cluster.spec.raised_client_limits || cluster.has_fake_nodes() {
        vec![
            "--kube-api-qps=1000".to_owned(),
            "--kube-api-burst=2000".to_owned(),
        ]
    } else {
        Vec::new()
    }
}

fn kubelet(cluster: &ClusterLayout, node: &NodeLayout) -> Vec<String> {
    let addresses: Vec<_> = node.addresses().iter().map(ToString::to_string).collect();
    let mut flags = vec![
        flag("config", node.dir.join("kubelet.json")),
        flag("kubeconfig", node.dir.join("kubelet.kubeconfig")),
        flag("root-dir", node.dir.join("kubelet")),
        flag("cert-dir", node.dir.join("kubelet/pki")),
        format!("--hostname-override={}", node.name),
        format!("--node-ip={}", addresses.join(",")),
    ];
    if !cluster.spec.metrics {
        // Nobody reads what it measures of each container, by default every ten seconds.
        flags.push("--housekeeping-interval=60s".to_owned());
    }
    flags
}

fn kube_proxy(cluster: &ClusterLayout, node: &NodeLayout) -> Vec<String> {
    vec![
        flag("kubeconfig", cluster.dir.join("kube-proxy.kubeconfig")),
        format!("--hostname-override={}", node.name),
        format!("--cluster-cidr={}", cluster.pod_ranges()),
        "--proxy-mode=nftables".to_owned(),
        // These limits belong to the whole machine.
        "--conntrack-max-per-core=0".to_owned(),
        "--conntrack-tcp-timeout-established=0".to_owned(),
        "--conntrack-tcp-timeout-close-wait=0".to_owned(),
        "--oom-score-adj=0".to_owned(),
    ]
}

/// Only its policy controller: the CNI plugins connect pods, and kube-proxy implements Services.
fn kube_router(cluster: &ClusterLayout, node: &NodeLayout) -> Vec<String> {
    let mut flags = vec![
        flag("kubeconfig", cluster.dir.join("kube-router.kubeconfig")),
        format!("--hostname-override={}", node.name),
        format!("--service-cluster-ip-range={}", cluster.service_ranges()),
    ];
    flags.extend(
        [
            "--run-router=false",
            "--run-service-proxy=false",
            "--enable-cni=false",
            "--health-port=0",
            "--v=1",
        ]
        .map(str::to_owned),
    );
    flags
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        layout::{ClusterState, Instance},
        spec::ClusterSpec,
    };

    fn all(nodes: Vec<u8>, spec: ClusterSpec) -> Vec<Definition> {
        let layout = Instance::new("test")
            .unwrap()
            .layout(7, &ClusterState { spec, nodes });
        let program = PathBuf::from("/bin/true");
        let programs = Programs {
            etcd: program.clone(),
            kube_apiserver: program.clone(),
            kube_controller_manager: program.clone(),
            kube_scheduler: program.clone(),
            kubelet: program.clone(),
            kube_proxy: program.clone(),
            coredns: program.clone(),
            containerd: program.clone(),
            kwok: Some(program.clone()),
            kube_router: Some(program),
            metrics_server: None,
        };
        definitions(&layout, &programs)
    }

    fn rome() -> ClusterSpec {
        ClusterSpec::new("rome")
    }

    fn has_flag(definition: &Definition, wanted: &str) -> bool {
        definition.command.iter().any(|flag| flag == wanted)
    }

    #[test]
    fn a_second_node_adds_only_the_programs_of_a_node() {
        let names: Vec<_> = all(vec![10, 11], rome())
            .into_iter()
            .map(|definition| definition.component)
            .collect();
        assert_eq!(
            names[4..],
            [
                "containerd",
                "kubelet",
                "kube-proxy",
                "containerd@rome-2",
                "kubelet@rome-2",
                "kube-proxy@rome-2"
            ]
        );
    }

    #[test]
    fn client_limits_are_raised_on_request_and_for_fake_nodes_only() {
        let raised = |spec| {
            all(vec![10], spec)
                .iter()
                .filter(|definition| has_flag(definition, "--kube-api-qps=1000"))
                .count()
        };
        assert_eq!(raised(rome()), 0);
        assert_eq!(
            raised(ClusterSpec {
                raised_client_limits: true,
                ..rome()
            }),
            2
        );
        assert_eq!(raised(rome().with_fake_nodes(1)), 2);
    }

    #[test]
    fn kwok_runs_only_where_there_are_fake_nodes() {
        let named = |spec| {
            all(vec![10, 11], spec)
                .into_iter()
                .filter(|definition| definition.component == KWOK)
                .count()
        };
        assert_eq!(named(rome()), 0);
        assert_eq!(named(rome().with_fake_nodes(100)), 1);
    }

    #[test]
    fn policies_are_enforced_on_each_node_on_request() {
        let named = |spec| {
            all(vec![10, 11], spec)
                .into_iter()
                .filter(|definition| definition.component.starts_with(KUBE_ROUTER))
                .count()
        };
        assert_eq!(named(rome()), 0);
        assert_eq!(
            named(ClusterSpec {
                network_policies: true,
                ..rome()
            }),
            2
        );
    }

    #[test]
    fn nodes_get_ranges_unless_there_are_fake_nodes() {
        let allocates = |spec| has_flag(&all(vec![10], spec)[2], "--allocate-node-cidrs=true");
        assert!(allocates(rome()));
        assert!(!allocates(rome().with_fake_nodes(1)));
    }

    #[test]
    fn the_programs_of_a_cluster_with_both_families_get_both_ranges() {
        let both = all(
            vec![10],
            ClusterSpec {
                dual_stack: true,
                ..rome()
            },
        );
        let ranges = |name: &str| {
            let flag = format!("--{name}=");
            let found = both
                .iter()
                .flat_map(|definition| &definition.command)
                .filter(|argument| argument.starts_with(&flag));
            found
                .map(|argument| argument[flag.len()..].to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            ranges("service-cluster-ip-range"),
            ["10.96.0.0/12,fd00:10:96::/112"; 2]
        );
        assert_eq!(
            ranges("cluster-cidr"),
            ["10.244.0.0/16,fd00:10:244::/48"; 2]
        );
        assert_eq!(ranges("node-ip"), ["172.30.7.10,fd00:172:30:7::10"]);
        assert_eq!(
            (
                ranges("node-cidr-mask-size").len(),
                ranges("node-cidr-mask-size-ipv6")
            ),
            (0, vec!["64".to_owned()])
        );
        assert!(
            has_flag(&all(vec![10], rome())[2], "--cluster-cidr=10.244.0.0/16"),
            "a cluster with one family has one range"
        );
    }

    #[test]
    fn the_api_server_checks_the_certificates_of_kubelets() {
        let definitions = all(vec![10], rome());
        let flags = &definitions[1].command;
        assert!(
            flags
                .iter()
                .any(|flag| flag.starts_with("--kubelet-certificate-authority="))
        );
    }
}
