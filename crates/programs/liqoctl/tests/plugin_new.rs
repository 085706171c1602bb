//! What `liqoctl plugin new` writes can be built and asked, as it is.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use liqo_resource_plugin::{PluginClient, Settings, SubscriptionState};

/// A folder that goes when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("plugin-new-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tree() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")).unwrap()
}

fn new(name: &str, folder: &Folder, more: &[&str]) -> Output {
    let dir = folder.0.to_str().unwrap();
    Command::new(env!("CARGO_BIN_EXE_liqoctl"))
        .args(["plugin", "new", name, "--dir", dir])
        .args(more)
        .output()
        .unwrap()
}

#[tokio::test]
async fn a_new_plugin_builds_and_answers() {
    let folder = Folder::new("builds");
    let made = new(
        "my-plugin",
        &folder,
        &["--sdk", tree().to_str().unwrap(), "-o", "json"],
    );
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let said = String::from_utf8(made.stdout).unwrap();
    let plugin = folder.0.join("my-plugin");
    for file in [
        "Cargo.toml",
        "src/main.rs",
        "README.md",
        "Dockerfile",
        "deploy/deployment.yaml",
        "deploy/service.yaml",
    ] {
        assert!(said.contains(&format!("\"{file}\"")), "{said}");
        let text = fs::read_to_string(plugin.join(file)).unwrap();
        assert!(
            !text.contains("{name}") && !text.contains("{sdk}") && !text.contains("{liqo}"),
            "{file}: {text}"
        );
    }

    // The versions that Liqo itself uses, which are on this machine; and a folder for what is built
    // that later runs find again.
    fs::copy(tree().join("Cargo.lock"), plugin.join("Cargo.lock")).unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugin-new-target");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--offline", "--quiet"])
        .current_dir(&plugin)
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );

    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut child = Command::new(target.join("debug/my-plugin"))
        .args(["--address=127.0.0.1", &format!("--port={port}")])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let _running = Running(child);
    assert!(
        lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line.contains("listening")),
        "it does not listen"
    );

    let client = PluginClient::new(Settings::new(format!("127.0.0.1:{port}"))).unwrap();
    let pools = client.read("rome").await.unwrap();
    assert_eq!(pools.len(), 1);
    assert_eq!(
        pools[0].resources.to_string(),
        "cpu=4, memory=16Gi, nvidia.com/gpu=1, pods=20"
    );
    client
        .subscription_state()
        .wait_for(|state| *state == SubscriptionState::Connected)
        .await
        .unwrap();
}

#[test]
fn what_is_there_already_is_left_alone() {
    let folder = Folder::new("there");
    let plugin = folder.0.join("my-plugin");
    fs::create_dir(&plugin).unwrap();
    fs::write(plugin.join("README.md"), "mine").unwrap();
    let made = new("my-plugin", &folder, &["--sdk", tree().to_str().unwrap()]);
    assert!(!made.status.success());
    let said = String::from_utf8(made.stderr).unwrap();
    assert!(
        said.starts_with("liqoctl: ") && said.contains("already exists"),
        "{said}"
    );
    assert_eq!(
        fs::read_to_string(plugin.join("README.md")).unwrap(),
        "mine"
    );
    assert_eq!(fs::read_dir(&plugin).unwrap().count(), 1);
}

#[test]
fn without_an_sdk_nothing_is_made() {
    let folder = Folder::new("nosdk");
    let nowhere = folder.0.to_str().unwrap().to_owned();
    let made = new("my-plugin", &folder, &["--sdk", &nowhere]);
    assert!(!made.status.success());
    assert!(
        String::from_utf8(made.stderr)
            .unwrap()
            .contains("--sdk must name")
    );
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}
