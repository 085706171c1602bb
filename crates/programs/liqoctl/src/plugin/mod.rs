//! `liqoctl plugin new`: creates the code of a resource plugin that already builds, answers and can
//! be deployed.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::Args;
use serde::Serialize;

/// Longer names would not fit into the name of the Service.
const MAX_NAME_LEN: usize = 50;

const CARGO: &str = include_str!("Cargo.toml.template");
const DOCKERFILE: &str = include_str!("Dockerfile.template");
const README: &str = include_str!("README.md.template");
/// The SDK's own example, which its tests build.
const MAIN: &str = include_str!("../../../../resource-plugin/examples/one_gpu_for_each.rs");
/// The manifests of a plugin that needs no rights.
const DEPLOYED_AS: &str = "fixed-resources";
const DEPLOY: [(&str, &str); 4] = [
    (
        "deploy/account.yaml",
        include_str!("../../../../../deploy/fixed-resources/account.yaml"),
    ),
    (
        "deploy/deployment.yaml",
        include_str!("../../../../../deploy/fixed-resources/deployment.yaml"),
    ),
    (
        "deploy/service.yaml",
        include_str!("../../../../../deploy/fixed-resources/service.yaml"),
    ),
    (
        "deploy/networkpolicy.yaml",
        include_str!("../../../../../deploy/fixed-resources/networkpolicy.yaml"),
    ),
];

/// Options of `plugin new`.
#[derive(Clone, Debug, Args)]
pub struct PluginOptions {
    /// Name of the plugin
    pub name: String,
    /// Create the plugin's folder in this folder
    #[arg(long = "dir", default_value = ".", value_name = "FOLDER")]
    pub directory: PathBuf,
    /// A copy of Liqo's repository, which contains the SDK
    /// [default: the one that contains --dir]
    #[arg(long, value_name = "FOLDER")]
    pub sdk: Option<PathBuf>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CreatedPlugin {
    pub name: String,
    pub directory: PathBuf,
    pub files: Vec<String>,
    /// The command that builds its image.
    pub image_command: String,
}

/// Reason why nothing was created.
#[derive(Debug, thiserror::Error)]
pub enum PluginCreationError {
    /// Not a valid name of a package, a program and a Service.
    #[error(
        "{0:?} cannot be the name of a plugin: use a lower-case letter, then letters, digits and inner dashes, at most {MAX_NAME_LEN}"
    )]
    Name(String),
    #[error("{} already exists: choose another name or --dir", .0.display())]
    Exists(PathBuf),
    #[error("there is no SDK in {}: --sdk must name a copy of Liqo's repository", .0.display())]
    NoSdk(PathBuf),
    #[error("{} is not in a copy of Liqo's repository: name one with --sdk", .0.display())]
    NotInTree(PathBuf),
    /// The file system refuses.
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Creates the folder and its files. Never touches existing files.
pub fn create_plugin(options: &PluginOptions) -> Result<CreatedPlugin, PluginCreationError> {
    let PluginOptions {
        name,
        directory,
        sdk,
    } = options;
    if !is_name(name) {
        return Err(PluginCreationError::Name(name.clone()));
    }
    let parent = fs::canonicalize(directory).map_err(|source| PluginCreationError::Write {
        path: directory.clone(),
        source,
    })?;
    let sdk = find_sdk(&parent, sdk.as_deref())?;
    // crates/resource-plugin, two steps below the root.
    let liqo = sdk.ancestors().nth(2).unwrap_or(&sdk).to_owned();
    let folder = parent.join(name);
    if folder.exists() {
        return Err(PluginCreationError::Exists(folder));
    }
    let values = if parent == liqo.join("plugins") {
        TemplateValues::of_member(name, &liqo)
    } else {
        TemplateValues::of_own_workspace(name, &sdk, &liqo)
    };
    let files = values.files();
    for file in &files {
        let path = folder.join(&file.path);
        let written = fs::create_dir_all(path.parent().unwrap_or(&folder))
            .and_then(|()| fs::write(&path, &file.text));
        written.map_err(|source| PluginCreationError::Write { path, source })?;
    }
    Ok(CreatedPlugin {
        name: name.clone(),
        directory: folder,
        files: files.into_iter().map(|file| file.path).collect(),
        image_command: values.image_command,
    })
}

/// The next steps for the user.
pub fn render_next_steps(created: &CreatedPlugin) -> String {
    let CreatedPlugin {
        name,
        directory,
        files,
        image_command,
    } = created;
    format!(
        "Plugin {name} is in {}: {}.\nsrc/main.rs computes its answer. Next:\n  cargo run -- --address 127.0.0.1\n  {image_command}\n  \
         kubectl apply -f ./deploy -n liqo",
        directory.display(),
        files.join(", ")
    )
}

/// A file of the new plugin.
struct PluginFile {
    path: String,
    text: String,
}

/// The values that the templates name.
struct TemplateValues {
    name: String,
    /// Path of the SDK.
    sdk: String,
    /// Path of Liqo's tree.
    liqo: String,
    /// The command that builds the image.
    image_command: String,
    /// A member of Liqo's own workspace shares the lock file, the build folder and the Dockerfile.
    is_member: bool,
}

impl TemplateValues {
    fn of_member(name: &str, liqo: &Path) -> Self {
        Self {
            name: name.to_owned(),
            sdk: "../../crates/resource-plugin".to_owned(),
            liqo: liqo.display().to_string(),
            image_command: format!(
                "(cd ../.. && docker build --build-arg PLUGIN={name} --tag localhost/liqo/{name}:0.1.0 .)"
            ),
            is_member: true,
        }
    }

    fn of_own_workspace(name: &str, sdk: &Path, liqo: &Path) -> Self {
        let liqo = liqo.display().to_string();
        Self {
            name: name.to_owned(),
            sdk: sdk.display().to_string(),
            image_command: format!(
                "docker build --build-context liqo={liqo} --tag localhost/liqo/{name}:0.1.0 ."
            ),
            liqo,
            is_member: false,
        }
    }

    fn fill_template(&self, template: &str) -> String {
        template
            .replace("{name}", &self.name)
            .replace("{sdk}", &self.sdk)
            .replace("{liqo}", &self.liqo)
            .replace("{image_command}", &self.image_command)
    }

    fn files(&self) -> Vec<PluginFile> {
        let alone = if self.is_member {
            ""
        } else {
            "\n# Not a member of a workspace in a parent folder.\n[workspace]\n"
        };
        let mut files = vec![
            ("Cargo.toml", self.fill_template(CARGO) + alone),
            ("src/main.rs", MAIN.to_owned()),
            ("README.md", self.fill_template(README)),
        ];
        if !self.is_member {
            files.push((".gitignore", "/target\n".to_owned()));
            files.push((".dockerignore", "/target\n/.git\n".to_owned()));
            files.push(("Dockerfile", self.fill_template(DOCKERFILE)));
        }
        files.extend(
            DEPLOY
                .iter()
                .map(|(file, text)| (*file, deployed_as(text, &self.name))),
        );
        files
            .into_iter()
            .map(|(path, text)| PluginFile {
                path: path.to_owned(),
                text,
            })
            .collect()
    }
}

/// The manifest of another plugin: without the arguments that only the first one knows.
fn deployed_as(text: &str, name: &str) -> String {
    let own = [
        "--resource=",
        "# What each peer is offered",
        "# docker build",
    ];
    let kept = text
        .lines()
        .filter(|line| !own.iter().any(|own| line.contains(own)));
    kept.map(|line| line.replace(DEPLOYED_AS, name) + "\n")
        .collect()
}

/// Path of the SDK below Liqo's tree.
const SDK_IN_TREE: &str = "crates/resource-plugin";

fn find_sdk(parent: &Path, said: Option<&Path>) -> Result<PathBuf, PluginCreationError> {
    let found = if let Some(said) = said {
        [said.to_owned(), said.join(SDK_IN_TREE)]
            .into_iter()
            .find(|folder| is_sdk_folder(folder))
            .ok_or_else(|| PluginCreationError::NoSdk(said.to_owned()))?
    } else {
        parent
            .ancestors()
            .map(|tree| tree.join(SDK_IN_TREE))
            .find(|folder| is_sdk_folder(folder))
            .ok_or_else(|| PluginCreationError::NotInTree(parent.to_owned()))?
    };
    fs::canonicalize(&found).map_err(|source| PluginCreationError::Write {
        path: found,
        source,
    })
}

fn is_sdk_folder(folder: &Path) -> bool {
    fs::read_to_string(folder.join("Cargo.toml"))
        .is_ok_and(|text| text.contains("name = \"liqo-resource-plugin\""))
}

fn is_name(name: &str) -> bool {
    name.len() <= MAX_NAME_LEN
        && name
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_lowercase())
        && name.bytes().last().is_some_and(is_lower_alphanumeric)
        && name
            .bytes()
            .all(|byte| is_lower_alphanumeric(byte) || byte == b'-')
}

fn is_lower_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{
        apps::v1::Deployment, core::v1 as core, networking::v1::NetworkPolicy, rbac::v1 as rbac,
    };
    use serde::de::DeserializeOwned;
    use serde_json::Value;

    use super::*;

    /// The API server has to understand all of it.
    fn understood<K: DeserializeOwned + Serialize>(document: &Value) {
        let read: K = serde_json::from_value(document.clone()).unwrap();
        let mut again = serde_json::to_value(&read).unwrap();
        for field in ["apiVersion", "kind"] {
            again[field] = document[field].clone();
        }
        assert_eq!(again, *document, "a field that Kubernetes does not know");
    }

    /// Manifests that `kubectl apply -n liqo` takes, in a namespace that enforces the Pod Security
    /// standard `restricted`.
    fn check(plugin: &str, texts: &[String]) {
        let documents: Vec<Value> = texts
            .iter()
            .flat_map(|text| serde_saphyr::from_multiple::<Value>(text).unwrap())
            .collect();
        let name = format!("liqo-{plugin}-plugin");
        let mut kinds = Vec::new();
        for document in &documents {
            assert_eq!(document["metadata"]["name"], *name);
            assert_eq!(
                document["metadata"].get("namespace"),
                None,
                "{plugin}: the namespace is for -n to say"
            );
            match document["kind"].as_str().unwrap() {
                "Deployment" => understood::<Deployment>(document),
                "Service" => understood::<core::Service>(document),
                "ServiceAccount" => understood::<core::ServiceAccount>(document),
                "NetworkPolicy" => understood::<NetworkPolicy>(document),
                "ClusterRole" => understood::<rbac::ClusterRole>(document),
                "ClusterRoleBinding" => understood::<rbac::ClusterRoleBinding>(document),
                other => panic!("{other}"),
            }
            kinds.push(document["kind"].as_str().unwrap());
        }
        for needed in ["Deployment", "Service", "ServiceAccount", "NetworkPolicy"] {
            assert_eq!(
                kinds.iter().filter(|kind| **kind == needed).count(),
                1,
                "{plugin}: {needed}"
            );
        }
        let of = |kind: &str| {
            documents
                .iter()
                .find(|document| document["kind"] == kind)
                .unwrap()
        };
        let (deployment, service) = (of("Deployment"), of("Service"));
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        for selector in [
            &deployment["spec"]["selector"]["matchLabels"],
            &service["spec"]["selector"],
            &of("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        ] {
            assert_eq!(
                selector["app.kubernetes.io/name"], labels["app.kubernetes.io/name"],
                "{plugin}"
            );
        }
        assert_eq!(service["spec"]["ports"][0]["port"], 6001);
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["serviceAccountName"], *name);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(
            pod["securityContext"]["seccompProfile"]["type"],
            "RuntimeDefault"
        );
        let container = &pod["containers"][0];
        assert_eq!(
            container["image"],
            *format!("localhost/liqo/{plugin}:0.1.0")
        );
        let security = &container["securityContext"];
        assert_eq!(security["allowPrivilegeEscalation"], false);
        assert_eq!(security["readOnlyRootFilesystem"], true);
        assert_eq!(security["capabilities"]["drop"][0], "ALL");
        assert_eq!(
            container["readinessProbe"]["grpc"]["service"],
            "resource_reader"
        );
        assert_eq!(
            container["livenessProbe"]["grpc"]["port"],
            container["ports"][0]["containerPort"]
        );
        assert!(
            container["resources"]["requests"].is_object()
                && container["resources"]["limits"]["memory"].is_string()
        );
    }

    fn deployed(plugin: &str) -> Vec<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../../deploy")
            .join(plugin);
        fs::read_dir(folder)
            .unwrap()
            .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
            .collect()
    }

    #[test]
    fn every_plugin_can_be_deployed_with_kubectl_apply_in_any_namespace() {
        for plugin in ["fixed-resources", "node-labels-resources"] {
            check(plugin, &deployed(plugin));
        }
        let values = TemplateValues::of_own_workspace(
            "my-plugin",
            Path::new("/liqo/crates/resource-plugin"),
            Path::new("/liqo"),
        );
        let manifests: Vec<String> = values
            .files()
            .into_iter()
            .filter(|file| file.path.starts_with("deploy/"))
            .map(|file| file.text)
            .collect();
        check("my-plugin", &manifests);
        assert!(
            !manifests.concat().contains("--resource"),
            "arguments of another plugin"
        );
    }

    #[test]
    fn the_rights_of_the_node_labels_plugin_are_the_least() {
        let texts = deployed("node-labels-resources").join("---\n");
        let roles: Vec<Value> = serde_saphyr::from_multiple::<Value>(&texts).unwrap();
        let role = roles
            .iter()
            .find(|document| document["kind"] == "ClusterRole")
            .unwrap();
        let expected = serde_json::json!([{ "apiGroups": [""], "resources": ["nodes", "pods", "namespaces"], "verbs": ["get", "list", "watch"] }]);
        assert_eq!(role["rules"], expected);
    }

    #[test]
    fn names_that_fit_nowhere_are_refused() {
        for name in [
            "",
            "A",
            "1a",
            "-a",
            "a-",
            "a_b",
            "a.b",
            "a/b",
            "..",
            "ä",
            &"a".repeat(51),
        ] {
            let options = PluginOptions {
                name: name.to_owned(),
                directory: ".".into(),
                sdk: None,
            };
            assert!(
                matches!(create_plugin(&options), Err(PluginCreationError::Name(_))),
                "{name:?}"
            );
        }
        assert!(is_name("gpu-share2"));
    }

    #[test]
    fn a_plugin_in_the_tree_of_liqo_belongs_to_its_workspace() {
        let values = TemplateValues::of_member("mine", Path::new("/liqo"));
        let files = values.files();
        let cargo = files.iter().find(|file| file.path == "Cargo.toml").unwrap();
        let cargo = &cargo.text;
        assert!(
            cargo.contains("path = \"../../crates/resource-plugin\"")
                && !cargo.contains("[workspace]"),
            "{cargo}"
        );
        assert!(values.image_command.contains("--build-arg PLUGIN=mine"));
        assert!(files.iter().all(|file| file.path != "Dockerfile"));
    }
}
