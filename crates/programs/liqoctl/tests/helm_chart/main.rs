//! The chart in deploy/charts/liqo with the real Helm 3 and Helm 4. No cluster is needed. What Helm
//! renders equals what `liqoctl install --dry-run` prints with the same values file.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use kube::api::DynamicObject;
use liqoctl::{
    install,
    manifests::{INSTALLED_BY, NAMESPACE, kind},
    settings::{InstallSettings, InstallValues, InstalledState, table},
};
use serde_json::{Value, json};

const VALUES_OF_LIQO: &str = include_str!("values-of-liqo.yaml");
const ROME: &str = "discovery: { config: { clusterName: rome } }\n";

/// Both Helms, and a folder for their caches and for values files that goes when the test ends.
struct Helm {
    programs: [PathBuf; 2],
    folder: PathBuf,
}

impl Helm {
    fn new(test: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("helm-chart-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let programs = liqo_playground::helm_3_and_4(&liqo_playground::Silent);
        let programs = tokio::runtime::Runtime::new()
            .unwrap()
            .block_on(programs)
            .unwrap();
        Self { programs, folder }
    }

    fn file(&self, values: &str) -> PathBuf {
        let file = self.folder.join("values.yaml");
        fs::write(&file, values).unwrap();
        file
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .env("HOME", &self.folder)
            .env("KUBECONFIG", "/dev/null");
        command.output().unwrap()
    }

    /// What each Helm renders, or why it does not.
    fn template(&self, values: &str, arguments: &[&str]) -> [Result<String, String>; 2] {
        let file = self.file(values);
        self.programs.each_ref().map(|program| {
            let chart = chart();
            let first = [
                "template",
                "liqo",
                &chart,
                "--values",
                file.to_str().unwrap(),
            ];
            let in_liqo = ["--namespace", NAMESPACE];
            let place = if arguments.contains(&"--namespace") {
                &[][..]
            } else {
                &in_liqo[..]
            };
            let output = self.run(program, &[&first, place, arguments].concat());
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            if output.status.success() {
                Ok(text(output.stdout))
            } else {
                Err(text(output.stderr))
            }
        })
    }

    /// The objects that both Helms render.
    fn objects(&self, values: &str) -> BTreeMap<String, Value> {
        let [helm_3, helm_4] = self
            .template(values, &[])
            .map(|text| parsed(&text.unwrap_or_else(|error| panic!("{values}: {error}"))));
        assert_eq!(helm_3, helm_4, "{values}");
        helm_3
    }
}

impl Drop for Helm {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn chart() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy/charts/liqo");
    fs::canonicalize(folder)
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned()
}

fn parsed(text: &str) -> BTreeMap<String, Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    documents
        .into_iter()
        .filter(|document| !document.is_null())
        .map(named)
        .collect()
}

/// An object by its name, without the label that says who installed it.
fn named(mut object: Value) -> (String, Value) {
    let label = object["metadata"]["labels"]
        .as_object_mut()
        .unwrap()
        .remove(INSTALLED_BY.0);
    assert!(label.is_some_and(|label| label == "Helm" || label == INSTALLED_BY.1));
    let part = |name: &str| {
        object
            .pointer(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    (
        format!(
            "{} {} {}",
            part("/kind"),
            part("/metadata/namespace"),
            part("/metadata/name")
        ),
        object,
    )
}

fn is_in_templates(object: &DynamicObject) -> bool {
    let is_namespace_of_release =
        kind(object) == "Namespace" && object.metadata.name.as_deref() == Some(NAMESPACE);
    kind(object) != "CustomResourceDefinition" && !is_namespace_of_release
}

/// What `liqoctl install` applies with a values file, but for what Helm makes otherwise:
/// definitions and the release's namespace.
fn installed(file: &Path) -> BTreeMap<String, Value> {
    let settings =
        InstallSettings::from_files_and_arguments::<&str>(&[file.to_owned()], &[]).unwrap();
    let objects = install::installation_objects(
        &InstallValues::resolve(&settings, &InstalledState::default(), ""),
        true,
    )
    .unwrap();
    objects
        .into_iter()
        .filter(is_in_templates)
        .map(|object| named(json!(object)))
        .collect()
}

#[test]
fn helm_renders_what_liqoctl_installs() {
    let helm = Helm::new("parity");
    let manager = |text: &str| format!("{ROME}controllerManager: {text}\n");
    let network = |text: &str| format!("{ROME}network: {text}\n");
    let discovery = |text: &str| {
        format!(
            "discovery: {{ config: {{ clusterName: rome, clusterLabels: {{ region: eu, zone: '1' }} }}, {text} }}\n"
        )
    };
    let digest = "sha256:".to_owned() + &"0a".repeat(32);
    let cases = [
        ROME.to_owned(),
        manager("{ replicas: 2 }"),
        manager("{ replicas: 3, avoidNodes: { spot: 'yes', kwok.x-k8s.io/node: fake } }"),
        manager("{ config: { resourceSharingPercentage: 0, offerUpdateThresholdPercentage: 0 } }"),
        manager(
            "{ config: { resourcePluginAddress: 'plugin.liqo:6001', offerUpdateThresholdPercentage: 7 } }",
        ),
        manager(
            "{ config: { resourcePluginAddress: 'plugin.liqo:6001', resourcePluginGeneration: p1 } }",
        ),
        manager("{ image: { registry: example.org, tag: v7 } }"),
        manager(&format!(
            "{{ image: {{ repository: mine/manager, digest: '{digest}' }} }}"
        )),
        format!(
            "{ROME}global: {{ imageRegistry: mirror.example.org, other: 1 }}\nfabric: {{ image: {{ tag: '7' }}, keyDirectory: /opt/liqo }}\n"
        ),
        network("{ enabled: false }"),
        network("{ mtu: 1380, apiThroughTunnel: true, externalCIDRs: [] }"),
        network(
            "{ podCIDRs: [10.1.0.0/16, 'fd01::/64'], serviceCIDRs: [10.2.0.0/16], reservedCIDRs: [10.4.0.0/16], peerCIDRs: [10.5.0.0/16] }",
        ),
        network(
            "{ gateways: { replicas: 3, port: 5000, tlsPort: 0, nodeSelector: { edge: 'on' }, addresses: ['203.0.113.7:51840'], tlsAddresses: ['g.example.org:443'] } }",
        ),
        discovery("lan: { enabled: true }"),
        discovery("lan: { enabled: true, interfaces: [eth0, eth1] }, autoPeering: [LAN, DNS]"),
        format!(
            "{ROME}apiServer: {{ address: '203.0.113.5:6443/', ca: \"-----BEGIN CERTIFICATE-----\\nMII=\\n-----END CERTIFICATE-----\\n\" }}\n\
             authentication: {{ address: 'https://203.0.113.5:30443' }}\nlendWithoutNetworkPolicies: true\n\
             peering: {{ credentialLifetimeSeconds: 7200 }}\n"
        ),
        VALUES_OF_LIQO.to_owned(),
    ];
    for values in cases {
        let (rendered, expected) = (helm.objects(&values), installed(&helm.file(&values)));
        for (name, object) in &expected {
            assert_eq!(rendered.get(name), Some(object), "{values}");
        }
        assert_eq!(
            rendered.keys().collect::<Vec<_>>(),
            expected.keys().collect::<Vec<_>>(),
            "{values}"
        );
    }
}

#[test]
fn two_renderings_are_equal_to_the_byte_and_lint_finds_nothing() {
    let helm = Helm::new("lint");
    for values in [ROME, VALUES_OF_LIQO] {
        assert_eq!(helm.template(values, &[]), helm.template(values, &[]));
        let file = helm.file(values);
        for program in &helm.programs {
            for values in [&[][..], &["--values", file.to_str().unwrap()]] {
                let output = helm.run(
                    program,
                    &[
                        &["lint", "--strict", &chart(), "--namespace", NAMESPACE],
                        values,
                    ]
                    .concat(),
                );
                let text = String::from_utf8_lossy(&output.stdout).into_owned()
                    + &String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{text}");
            }
        }
    }
}

#[test]
fn what_cannot_work_is_refused_with_a_sentence() {
    let helm = Helm::new("refused");
    let refused = |values: &str, arguments: &[&str], sentence: &str| {
        for outcome in helm.template(values, arguments) {
            let text = outcome
                .err()
                .unwrap_or_else(|| panic!("{values} {arguments:?}: rendered"));
            assert!(text.contains(sentence), "{values} {arguments:?}: {text}");
        }
    };
    refused("{}", &[], "discovery.config.clusterName is empty");
    refused(
        ROME,
        &["--namespace", "default"],
        "Liqo runs in namespace liqo",
    );
    refused(
        ROME,
        &["--kube-version", "1.29.4"],
        "--set admissionPolicies.enabled=false",
    );
    refused(ROME, &["--kube-version", "1.28.9"], ">=1.29.0-0");
    refused(ROME, &["--set", "fullnameOverride=x"], "fullnameOverride");
    refused(
        ROME,
        &["--set", "auth.config.enableAuthentication=false"],
        "always needs a token",
    );
    refused(
        ROME,
        &["--set", "awsConfig.accessKeyId=x"],
        "never identities of AWS",
    );
    refused(
        ROME,
        &["--set", "gateway.config.portOverride=5"],
        "network.gateways.addresses",
    );
    refused(ROME, &["--set", "netwrok.mtu=1400"], "netwrok");
    refused(ROME, &["--set", "network.mtuu=1400"], "mtuu");
    refused(
        ROME,
        &["--set", "network.mtu=100"],
        "'/network/mtu': minimum",
    );
    refused(
        ROME,
        &["--set", "networking.mtu=100"],
        "'/networking/mtu': minimum",
    );
    refused(ROME, &["--set", "network.mtu=null"], "mtu");
    refused(
        ROME,
        &["--set", "discovery.config.clusterName=Rome_1"],
        "clusterName",
    );
    refused(
        ROME,
        &["--set", "extraLabels.liqo\\.io/managed=x"],
        "liqo.io/managed",
    );
    let without = helm.template(
        ROME,
        &[
            "--kube-version",
            "1.29.4",
            "--set",
            "admissionPolicies.enabled=false",
        ],
    );
    assert!(
        without
            .iter()
            .all(|text| !text.as_ref().unwrap().contains("ValidatingAdmissionPolicy"))
    );
}

const VALUES_OF_THE_CHART_ALONE: &str = r#"
discovery: { config: { clusterName: rome } }
imagePullPolicy: Always
imagePullSecrets: [one, { name: two }]
extraLabels: { team: a }
extraAnnotations: { note: "1" }
common:
  nodeSelector: { pool: system }
  tolerations: [{ key: spot, operator: Exists }]
controllerManager:
  avoidNodes: { spot: "yes" }
  nodeSelector: { pool: manager }
  priorityClassName: mine
  podLabels: { a: b, app.kubernetes.io/name: x }
  podAnnotations: { c: d }
  resources: { requests: { cpu: 1 } }
  extraEnv: [{ name: RUST_LOG, value: debug }]
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
          - matchExpressions: [{ key: zone, operator: In, values: [a] }]
          - matchFields: [{ key: metadata.name, operator: In, values: [n] }]
fabric: { tolerations: [{ key: gpu, operator: Exists, effect: NoExecute }] }
authentication: { service: { type: LoadBalancer, annotations: { cloud: x }, nodePort: 30443 } }
"#;

#[test]
fn values_of_the_chart_alone_reach_the_pods() {
    let helm = Helm::new("pods");
    let objects = helm.objects(VALUES_OF_THE_CHART_ALONE);
    assert_values_of_pods(&objects);
    let manager = &objects["Deployment liqo liqo-controller-manager"]["spec"]["template"];
    assert_values_of_manager(manager);
    assert_affinity_of_manager(&manager["spec"]["affinity"]);
    let service = &objects["Service liqo liqo-auth"];
    assert_eq!(
        (
            &service["spec"]["type"],
            &service["spec"]["ports"][0]["nodePort"]
        ),
        (&json!("LoadBalancer"), &json!(30443))
    );
    assert_eq!(
        service["metadata"]["annotations"],
        json!({ "cloud": "x", "note": "1" })
    );
    for (name, object) in &objects {
        assert_eq!(
            (
                &object["metadata"]["labels"]["team"],
                &object["metadata"]["annotations"]["note"]
            ),
            (&json!("a"), &json!("1")),
            "{name}"
        );
    }
}

fn assert_values_of_pods(objects: &BTreeMap<String, Value>) {
    let [manager, dns, fabric] = [
        "Deployment liqo liqo-controller-manager",
        "Deployment liqo liqo-dns",
        "DaemonSet liqo-fabric liqo-fabric",
    ]
    .map(|name| &objects[name]["spec"]["template"]);
    for pod in [manager, dns, fabric] {
        assert_eq!(
            pod["spec"]["imagePullSecrets"],
            json!([{ "name": "one" }, { "name": "two" }])
        );
        assert_eq!(pod["spec"]["containers"][0]["imagePullPolicy"], "Always");
    }
    assert_eq!(
        (
            &manager["spec"]["nodeSelector"]["pool"],
            &dns["spec"]["nodeSelector"]["pool"]
        ),
        (&json!("manager"), &json!("system"))
    );
    assert!(
        fabric["spec"]["nodeSelector"].is_null(),
        "the fabric runs on all nodes"
    );
    assert_eq!(
        (
            &manager["spec"]["tolerations"][0]["key"],
            &dns["spec"]["tolerations"][0]["key"]
        ),
        (&json!("spot"), &json!("spot"))
    );
    let tolerations = fabric["spec"]["tolerations"].as_array().unwrap();
    assert_eq!(
        (tolerations.len(), &tolerations.last().unwrap()["key"]),
        (8, &json!("gpu"))
    );
}

fn assert_values_of_manager(manager: &Value) {
    assert_eq!(manager["metadata"]["labels"]["a"], "b");
    assert_eq!(
        manager["metadata"]["labels"]["app.kubernetes.io/name"],
        "liqo-controller-manager"
    );
    assert_eq!(manager["metadata"]["annotations"], json!({ "c": "d" }));
    assert_eq!(manager["spec"]["priorityClassName"], "mine");
    let container = &manager["spec"]["containers"][0];
    assert_eq!(container["resources"]["requests"]["cpu"], json!(1));
    assert!(
        container["env"]
            .as_array()
            .unwrap()
            .contains(&json!({ "name": "RUST_LOG", "value": "debug" }))
    );
}

fn assert_affinity_of_manager(affinity: &Value) {
    let terms =
        affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].as_array().unwrap();
    assert_eq!(terms.len(), 2);
    for term in terms {
        let keys: Vec<_> = term["matchExpressions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["key"].as_str().unwrap())
            .collect();
        assert!(keys.starts_with(&["liqo.io/type", "spot"]), "{keys:?}");
    }
    assert_eq!(
        (
            &terms[0]["matchExpressions"][2]["key"],
            &terms[1]["matchFields"][0]["key"]
        ),
        (&json!("zone"), &json!("metadata.name"))
    );
    assert!(
        affinity["podAntiAffinity"].is_object(),
        "it stays unless one is given"
    );
}

#[test]
fn a_network_policy_of_the_manager_opens_every_port_that_it_has() {
    let helm = Helm::new("policy");
    let name = "NetworkPolicy liqo liqo-controller-manager";
    assert!(!helm.objects(ROME).contains_key(name));
    let objects = helm.objects(&format!("{ROME}networkPolicies: {{ enabled: true }}\n"));
    let manager = &objects["Deployment liqo liqo-controller-manager"]["spec"]["template"];
    let container = &manager["spec"]["containers"][0];
    let policy = &objects["NetworkPolicy liqo liqo-controller-manager"]["spec"];
    let selector = policy["podSelector"]["matchLabels"]["app.kubernetes.io/name"].as_str();
    assert_eq!(
        selector,
        manager["metadata"]["labels"]["app.kubernetes.io/name"].as_str()
    );
    let open: Vec<&Value> = policy["ingress"][0]["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| &port["port"])
        .collect();
    for port in container["ports"].as_array().unwrap() {
        assert!(open.contains(&&port["containerPort"]), "{port}");
    }
}

#[test]
fn keys_of_liqo_reach_values_of_the_chart_alone() {
    let helm = Helm::new("mapped");
    let values = "discovery: { config: { clusterName: rome, incomingPeeringEnabled: false } }\npullPolicy: Never\n\
                  common: { globalAnnotations: { a: b } }\n\
                  auth: { service: { type: LoadBalancer, annotations: { cloud: x }, nodePort: { port: 30443 } } }\n\
                  controllerManager: { pod: { annotations: { a: b }, labels: { c: d }, priorityClassName: mine, resources: { limits: { memory: 1Gi } } } }\n";
    let objects = helm.objects(values);
    let manager = &objects["Deployment liqo liqo-controller-manager"]["spec"]["template"];
    assert_eq!(
        (
            &manager["metadata"]["annotations"]["a"],
            &manager["metadata"]["labels"]["c"]
        ),
        (&json!("b"), &json!("d"))
    );
    assert_eq!(manager["spec"]["priorityClassName"], "mine");
    let container = &manager["spec"]["containers"][0];
    assert_eq!(
        (&container["imagePullPolicy"], &container["resources"]),
        (&json!("Never"), &json!({ "limits": { "memory": "1Gi" } }))
    );
    let service = &objects["Service liqo liqo-auth"];
    assert_eq!(
        (
            &service["spec"]["type"],
            &service["spec"]["ports"][0]["nodePort"]
        ),
        (&json!("LoadBalancer"), &json!(30443))
    );
    assert_eq!(
        service["metadata"]["annotations"],
        json!({ "a": "b", "cloud": "x" })
    );
    assert_eq!(
        objects["PeeringPolicy  default"]["spec"]["provide"]["percentage"],
        json!(0)
    );
}

#[test]
fn the_values_of_liqo_are_all_keys_of_the_table_that_are_not_refused() {
    let values: Value = serde_saphyr::from_str(VALUES_OF_LIQO).unwrap();
    for row in table::keys_of_liqo() {
        let path = format!("/{}", row.key.replace('.', "/"));
        let mentions = values.pointer(&path).is_some();
        assert!(mentions, "{} is missing", row.key);
    }
    let helm = Helm::new("keys");
    let settings =
        InstallSettings::from_files_and_arguments::<&str>(&[helm.file(VALUES_OF_LIQO)], &[])
            .unwrap();
    for row in table::keys_of_liqo().filter(|row| row.class == table::SettingClass::Noted) {
        assert!(settings.notes.contains(&row.note_for_user()), "{}", row.key);
    }
}
