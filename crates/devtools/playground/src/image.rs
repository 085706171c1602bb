//! Container images without a registry and without a builder: an OCI archive is a tar of a few JSON
//! documents and one layer.
//!
//! The layer holds a program, the shared libraries that `ldd` names, and the few files that every
//! program expects. The same input gives the same bytes, so an image that is already loaded is
//! recognised by its digest.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Cursor,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

use crate::{
    binaries::{search, search_path},
    error::{Error, Result},
    layout::NodeLayout,
    run::run,
};

/// The image that holds a pod's namespaces open.
pub const PAUSE: &str = "localhost/pause:1";
/// A shell and the usual small programs. Its `wget` crashes when it is given `-T`: `timeout 3 wget`
/// works.
pub const BUSYBOX: &str = "localhost/busybox:1";
/// The cluster's name server.
pub(crate) const COREDNS: &str = "localhost/coredns:1.12.4";
/// What serves the metrics API.
pub(crate) const METRICS_SERVER: &str = "localhost/metrics-server:0.9.0";
/// The user of images that do not need root.
pub const NONROOT: u32 = 65532;

/// The content of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSpec {
    /// Its full name, with a registry part and a tag other than `latest`, or the kubelet would pull
    /// it: `localhost/liqo/fabric:dev`.
    pub reference: String,
    /// The program on this machine.
    pub program: PathBuf,
    /// Its path in the image: `/usr/bin` and its file name, if there is none.
    pub place: Option<String>,
    /// Arguments in front of the pod's.
    pub arguments: Vec<String>,
    /// Arguments for pods that have none.
    pub default_arguments: Vec<String>,
    /// More programs of this machine, by name. In the image they are in `/usr/sbin`.
    pub programs: Vec<String>,
    /// More files: path in the image, path on this machine.
    pub files: Vec<(String, PathBuf)>,
    /// More files: path in the image, content.
    pub texts: Vec<(String, String)>,
    /// Symbolic links: path in the image, target.
    pub links: Vec<(String, String)>,
    /// Numeric user and group.
    pub user: u32,
    /// `NAME=value`.
    pub environment: Vec<String>,
    /// Labels of the image, by name.
    pub labels: BTreeMap<String, String>,
}

impl ImageSpec {
    /// An image that runs one program as [`NONROOT`].
    pub fn new(reference: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self {
            reference: reference.into(),
            program: program.into(),
            place: None,
            arguments: Vec::new(),
            default_arguments: Vec::new(),
            programs: Vec::new(),
            files: Vec::new(),
            texts: Vec::new(),
            links: Vec::new(),
            user: NONROOT,
            environment: Vec::new(),
            labels: BTreeMap::new(),
        }
    }
}

/// An image as one tar file in the OCI image layout, which containerd and skopeo import.
#[derive(Debug)]
pub struct ImageArchive {
    pub reference: String,
    /// Digest of the manifest, by which containerd knows the image.
    pub digest: String,
    pub bytes: Vec<u8>,
}

/// A file that an image takes from this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineFile {
    /// Its path in the image, without the first slash.
    pub place: String,
    /// Its path on this machine.
    pub source: PathBuf,
}

/// The programs of this machine that the image holds, and the shared libraries of all its programs.
pub async fn machine_files(spec: &ImageSpec) -> Result<Vec<MachineFile>> {
    let mut files = Vec::new();
    let mut libraries = shared_libraries(&spec.program).await;
    for name in &spec.programs {
        let found = search(name, &search_path()).ok_or_else(|| Error::Image {
            reference: spec.reference.clone(),
            reason: format!("there is no program {name} on this machine"),
        })?;
        libraries.extend(shared_libraries(&found).await);
        files.push(MachineFile {
            place: format!("usr/sbin/{name}"),
            source: found,
        });
    }
    files.extend(libraries.into_iter().map(|library| MachineFile {
        place: library.trim_start_matches('/').to_owned(),
        source: library.into(),
    }));
    Ok(files)
}

/// Builds the archive of an image.
pub async fn build_image(spec: &ImageSpec) -> Result<ImageArchive> {
    let failed = |reason: String| Error::Image {
        reference: spec.reference.clone(),
        reason,
    };
    let name = spec
        .program
        .file_name()
        .ok_or_else(|| failed(format!("{} is no file", spec.program.display())))?;
    let entrypoint = match &spec.place {
        Some(place) => place.trim_start_matches('/').to_owned(),
        None => format!("usr/bin/{}", name.to_string_lossy()),
    };
    let mut files = vec![(entrypoint.clone(), spec.program.clone())];
    let from_machine = machine_files(spec).await?;
    files.extend(
        from_machine
            .into_iter()
            .map(|file| (file.place, file.source)),
    );
    files.extend(
        spec.files
            .iter()
            .map(|(place, source)| (place.trim_start_matches('/').to_owned(), source.clone())),
    );
    let spec = spec.clone();
    // Reading and hashing takes seconds and must not block other tasks.
    let built = tokio::task::spawn_blocking(move || build(&spec, &entrypoint, files)).await;
    built.unwrap_or_else(|error| Err(failed(error.to_string())))
}

fn build(
    spec: &ImageSpec,
    entrypoint: &str,
    files: Vec<(String, PathBuf)>,
) -> Result<ImageArchive> {
    let failed = |reason: String| Error::Image {
        reference: spec.reference.clone(),
        reason,
    };
    let mut contents = Vec::new();
    for (place, source) in files {
        let bytes = fs::read(&source)
            .map_err(|error| failed(format!("cannot read {}: {error}", source.display())))?;
        contents.push((place, bytes));
    }
    contents.extend(spec.texts.iter().map(|(place, text)| {
        let place = place.trim_start_matches('/').to_owned();
        (place, text.clone().into_bytes())
    }));
    let layer = layer(&contents, &spec.links)
        .map_err(|error| failed(format!("cannot write its layer: {error}")))?;
    let environment = [
        vec!["PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()],
        spec.environment.clone(),
    ]
    .concat();
    let command = [vec![format!("/{entrypoint}")], spec.arguments.clone()].concat();
    let mut config = json!({
        "architecture": image_architecture(),
        "os": "linux",
        "config": {
            "User": format!("{0}:{0}", spec.user),
            "Env": environment,
            "Entrypoint": command,
            "Cmd": spec.default_arguments,
            "WorkingDir": "/",
        },
        "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
    });
    if !spec.labels.is_empty() {
        config["config"]["Labels"] = json!(spec.labels);
    }
    assemble(&spec.reference, &config, &layer)
        .map_err(|error| failed(format!("cannot write its archive: {error}")))
}

/// The libraries and the loader that `ldd` names. A static program has none.
async fn shared_libraries(program: &Path) -> BTreeSet<String> {
    let printed = run("ldd", &[program]).await.unwrap_or_default();
    parse_ldd(&printed)
}

fn parse_ldd(printed: &str) -> BTreeSet<String> {
    let last_path = |line: &str| {
        line.split_whitespace()
            .rfind(|word| word.starts_with('/'))
            .map(str::to_owned)
    };
    printed.lines().filter_map(last_path).collect()
}

/// The architecture of this machine, as images name it.
pub fn image_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The image's only layer. It is not compressed: nodes of the playground read it from a file, and
/// tools that push images compress layers.
fn layer(files: &[(String, Vec<u8>)], links: &[(String, String)]) -> std::io::Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    let fixed: [(&str, u32); 8] = [
        ("bin", 0o755),
        ("dev", 0o755),
        ("etc", 0o755),
        ("proc", 0o755),
        ("sys", 0o755),
        ("tmp", 0o1777),
        ("usr", 0o755),
        ("usr/bin", 0o755),
    ];
    let mut directories: BTreeSet<String> =
        fixed.iter().map(|(name, _)| (*name).to_owned()).collect();
    let places = files
        .iter()
        .map(|(place, _)| place.as_str())
        .chain(links.iter().map(|(place, _)| place.trim_start_matches('/')));
    directories.extend(places.flat_map(|place| {
        Path::new(place)
            .ancestors()
            .skip(1)
            .map(|path| path.display().to_string())
    }));
    for directory in directories.iter().filter(|directory| !directory.is_empty()) {
        let mode = fixed
            .iter()
            .find(|(name, _)| name == directory)
            .map_or(0o755, |(_, mode)| *mode);
        append(
            &mut tar,
            EntryType::Directory,
            &format!("{directory}/"),
            mode,
            &[],
        )?;
    }
    let passwd =
        format!("root:x:0:0:root:/:/bin/sh\nnonroot:x:{NONROOT}:{NONROOT}:nonroot:/:/bin/sh\n");
    let group = format!("root:x:0:\nnonroot:x:{NONROOT}:\n");
    for (name, text) in [
        ("etc/group", group.as_str()),
        ("etc/nsswitch.conf", "hosts: files dns\n"),
        ("etc/passwd", passwd.as_str()),
    ] {
        append(&mut tar, EntryType::Regular, name, 0o644, text.as_bytes())?;
    }
    for (place, bytes) in files {
        append(&mut tar, EntryType::Regular, place, file_mode(place), bytes)?;
    }
    for (place, target) in links {
        let mut header = header(EntryType::Symlink, 0o777, 0);
        tar.append_link(&mut header, place.trim_start_matches('/'), target)?;
    }
    tar.into_inner()
}

/// Programs and libraries can be executed, documentation cannot.
fn file_mode(place: &str) -> u32 {
    if place.starts_with("usr/share/") {
        0o644
    } else {
        0o755
    }
}

fn header(kind: EntryType, mode: u32, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn append(
    tar: &mut Builder<Vec<u8>>,
    kind: EntryType,
    path: &str,
    mode: u32,
    bytes: &[u8],
) -> std::io::Result<()> {
    let mut header = header(kind, mode, bytes.len());
    tar.append_data(&mut header, path, Cursor::new(bytes))
}

fn assemble(reference: &str, config: &Value, layer: &[u8]) -> std::io::Result<ImageArchive> {
    let config = config.to_string().into_bytes();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", layer)],
    });
    let manifest = manifest.to_string().into_bytes();
    let mut named = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    named["annotations"] = json!({
        "io.containerd.image.name": reference,
        "org.opencontainers.image.ref.name": image_tag(reference),
    });
    let index = json!({ "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [named] });
    let mut tar = Builder::new(Vec::new());
    append(
        &mut tar,
        EntryType::Regular,
        "oci-layout",
        0o644,
        br#"{"imageLayoutVersion":"1.0.0"}"#,
    )?;
    append(
        &mut tar,
        EntryType::Regular,
        "index.json",
        0o644,
        index.to_string().as_bytes(),
    )?;
    for blob in [config.as_slice(), manifest.as_slice(), layer] {
        append(
            &mut tar,
            EntryType::Regular,
            &format!("blobs/{}", digest(blob).replace(':', "/")),
            0o644,
            blob,
        )?;
    }
    Ok(ImageArchive {
        reference: reference.to_owned(),
        digest: digest(&manifest),
        bytes: tar.into_inner()?,
    })
}

/// The part of a reference behind its name, by which skopeo finds the image in a layout.
fn image_tag(reference: &str) -> &str {
    let after_registry = reference.rfind('/').map_or(0, |slash| slash + 1);
    reference[after_registry..]
        .split_once(':')
        .map_or("latest", |(_, tag)| tag)
}

fn descriptor(media_type: &str, blob: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(blob), "size": blob.len() })
}

/// ring's hash is fast even in debug builds, and images have a hundred megabytes.
fn digest(blob: &[u8]) -> String {
    format!(
        "sha256:{}",
        data_encoding::HEXLOWER.encode(ring::digest::digest(&ring::digest::SHA256, blob).as_ref())
    )
}

/// Imports the image into a node's containerd, unless it is already there.
pub(crate) async fn import(node: &NodeLayout, archive: &ImageArchive) -> Result<()> {
    let socket = node.containerd_socket().display().to_string();
    let ctr = ["--address", &socket, "--namespace", "k8s.io", "images"];
    let known = run(
        "ctr",
        &[&ctr[..], &["list", &format!("name=={}", archive.reference)]].concat(),
    )
    .await?;
    if known.contains(&archive.digest) {
        return Ok(());
    }
    let file = node
        .dir
        .join(format!("{}.tar", archive.digest.replace(':', "-")));
    fs::write(&file, &archive.bytes).map_err(Error::file("write", &file))?;
    let result = run(
        "ctr",
        &[&ctr[..], &["import", &file.display().to_string()]].concat(),
    )
    .await;
    fs::remove_file(&file).map_err(Error::file("remove", &file))?;
    result.map(drop)
}

/// The images that every cluster needs, and that of metrics-server if one of them runs it.
pub(crate) async fn base_images(
    coredns: &Path,
    metrics_server: Option<&Path>,
) -> Result<Vec<ImageArchive>> {
    let busybox = PathBuf::from("/bin/busybox");
    let pause = ImageSpec {
        arguments: vec!["sleep".to_owned(), "infinity".to_owned()],
        ..ImageSpec::new(PAUSE, &busybox)
    };
    let applets = run("busybox", &["--list"]).await?;
    let link = |applet: &str| (format!("/bin/{applet}"), "/usr/bin/busybox".to_owned());
    let shell = ImageSpec {
        arguments: Vec::new(),
        links: applets
            .lines()
            .filter(|applet| *applet != "busybox")
            .map(link)
            .collect(),
        user: 0,
        ..ImageSpec::new(BUSYBOX, &busybox)
    };
    // Port 53.
    let dns = ImageSpec {
        user: 0,
        ..ImageSpec::new(COREDNS, coredns)
    };
    let metrics = metrics_server.map(|program| ImageSpec::new(METRICS_SERVER, program));
    let mut images = Vec::new();
    for spec in [pause, shell, dns].iter().chain(&metrics) {
        images.push(build_image(spec).await?);
    }
    Ok(images)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, io::Read};

    use super::*;

    fn unpack(bytes: &[u8]) -> BTreeMap<String, (Header, Vec<u8>)> {
        let mut tar = tar::Archive::new(bytes);
        let read = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (
                entry.path().unwrap().display().to_string(),
                (entry.header().clone(), content),
            )
        };
        tar.entries().unwrap().map(read).collect()
    }

    fn example() -> ImageArchive {
        let layer = layer(
            &[("usr/bin/x".to_owned(), b"program".to_vec())],
            &[("/bin/y".to_owned(), "/usr/bin/x".to_owned())],
        )
        .unwrap();
        let config = json!({ "rootfs": { "diff_ids": [digest(&layer)] } });
        assemble("localhost/x:1", &config, &layer).unwrap()
    }

    #[test]
    fn every_digest_of_an_archive_leads_to_its_blob() {
        let archive = example();
        let files = unpack(&archive.bytes);
        let blob = |value: &Value| {
            files[&format!(
                "blobs/{}",
                value["digest"].as_str().unwrap().replace(':', "/")
            )]
                .1
                .clone()
        };
        let index: Value = serde_json::from_slice(&files["index.json"].1).unwrap();
        assert_eq!(
            index["manifests"][0]["annotations"]["io.containerd.image.name"],
            "localhost/x:1"
        );
        assert_eq!(index["manifests"][0]["digest"], archive.digest);
        let manifest: Value = serde_json::from_slice(&blob(&index["manifests"][0])).unwrap();
        let config: Value = serde_json::from_slice(&blob(&manifest["config"])).unwrap();
        let layer = blob(&manifest["layers"][0]);
        assert_eq!(config["rootfs"]["diff_ids"][0], digest(&layer));
        assert_eq!(manifest["layers"][0]["size"], layer.len());
    }

    #[test]
    fn the_tag_of_an_image_is_no_port_of_a_registry() {
        assert_eq!(image_tag("localhost/liqo/fabric:0.1.0"), "0.1.0");
        assert_eq!(image_tag("registry:5000/fabric:0.1.0"), "0.1.0");
        assert_eq!(image_tag("registry:5000/fabric"), "latest");
    }

    #[test]
    fn the_same_input_gives_the_same_bytes() {
        assert_eq!(example().bytes, example().bytes);
    }

    #[test]
    fn a_layer_has_the_program_and_a_temporary_directory_for_everybody() {
        let layer = layer(
            &[("usr/bin/x".to_owned(), b"program".to_vec())],
            &[("/bin/y".to_owned(), "/usr/bin/x".to_owned())],
        )
        .unwrap();
        let files = unpack(&layer);
        assert_eq!(files["tmp/"].0.mode().unwrap(), 0o1777);
        assert_eq!(files["usr/bin/x"].1, b"program");
        assert_eq!(
            files["bin/y"].0.link_name().unwrap().unwrap(),
            Path::new("/usr/bin/x")
        );
    }

    #[test]
    fn libraries_and_the_loader_are_named_by_ldd() {
        let printed = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert!(parse_ldd(printed).iter().eq(expected));
        assert!(parse_ldd("\tstatically linked\n").is_empty());
    }
}
