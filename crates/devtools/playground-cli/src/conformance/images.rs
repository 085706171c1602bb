//! The images of Kubernetes' tests, under the names that the tests want, made of programs of this
//! machine.

use std::path::{Path, PathBuf};

use liqo_playground::ImageSpec;

/// The programs in the images besides busybox, each with its Debian package.
pub const PROGRAMS: [(&str, &str); 9] = [
    ("bash", "bash"),
    ("curl", "curl"),
    ("dig", "bind9-dnsutils"),
    ("getent", "libc-bin"),
    ("ip", "iproute2"),
    ("ldd", "libc-bin"),
    ("mv", "coreutils"),
    ("nc", "netcat-openbsd"),
    ("ss", "iproute2"),
];
const BUSYBOX: &str = "/bin/busybox";
const DOCUMENTS: &str = "/usr/local/apache2/htdocs";

/// Files of this machine that images hold.
pub struct Files {
    pub agnhost: PathBuf,
    /// Any certificate, and its key.
    pub certificate: [PathBuf; 2],
    /// The page of the web servers.
    pub page: PathBuf,
}

/// All images. `applets` are those of busybox.
pub fn images(files: &Files, applets: &[&str]) -> Vec<ImageSpec> {
    let agnhost = files.agnhost.as_path();
    let named = |name: &str, program: &Path| ImageSpec {
        user: 0,
        ..ImageSpec::new(format!("registry.k8s.io/{name}"), program)
    };
    let with_shell = |name: &str, program: &Path, programs: &[&str]| {
        let link = |applet: &&str| (format!("/bin/{applet}"), "/usr/bin/busybox".to_owned());
        let busybox = (program != Path::new(BUSYBOX))
            .then(|| ("/usr/bin/busybox".to_owned(), BUSYBOX.into()));
        // The shell of busybox calls its own applets instead of programs of the same name.
        let shell = if programs.contains(&"bash") {
            "/usr/sbin/bash"
        } else {
            "/usr/bin/busybox"
        };
        let links = applets
            .iter()
            .filter(|applet| !["busybox", "sh"].contains(*applet))
            .map(link);
        ImageSpec {
            programs: programs
                .iter()
                .map(|program| (*program).to_owned())
                .collect(),
            files: busybox.into_iter().collect(),
            links: links
                .chain([("/bin/sh".to_owned(), shell.to_owned())])
                .collect(),
            ..named(name, program)
        }
    };
    let busybox = Path::new(BUSYBOX);
    let mut small = with_shell("e2e-test-images/busybox:1.37.0-1", busybox, &[]);
    // `sh` keeps variables whose names are no identifiers, as the busybox of that version does.
    // `/bin/sh` has the error texts of busybox.
    small.programs.push("bash".to_owned());
    small
        .links
        .push(("/usr/sbin/sh".to_owned(), "/usr/sbin/bash".to_owned()));
    let tools = ["agnhost:2.56", "jessie-dnsutils:1.7"].map(|name| {
        let programs = ["bash", "curl", "dig", "getent", "ip", "nc", "ss"];
        let mut image = with_shell(&format!("e2e-test-images/{name}"), agnhost, &programs);
        // Tests override the program by the second name, and compare how the first one was called.
        image.files.extend(
            ["/localhost.crt", "/localhost.key"]
                .map(str::to_owned)
                .into_iter()
                .zip(files.certificate.clone()),
        );
        image
            .links
            .push(("/agnhost-2".to_owned(), "/agnhost".to_owned()));
        ImageSpec {
            place: Some("/agnhost".to_owned()),
            default_arguments: vec!["pause".to_owned()],
            ..image
        }
    });
    let nonroot = ImageSpec {
        user: 1234,
        ..with_shell("e2e-test-images/nonroot:1.4", busybox, &[])
    };
    // The first process of a container does not end by a signal that it does not handle: agnhost
    // handles it, and so does the shell.
    let pause = ImageSpec {
        arguments: vec!["pause".to_owned()],
        user: 65535,
        ..named("pause:3.10.1", agnhost)
    };
    let serve = format!("trap 'exit 0' TERM; httpd -f -p 80 -h {DOCUMENTS} & wait");
    let servers = [
        "httpd:2.4.38-4",
        "httpd:2.4.39-4",
        "nginx:1.14-4",
        "nginx:1.15-4",
    ]
    .map(|name| {
        let mut server = with_shell(&format!("e2e-test-images/{name}"), busybox, &["bash", "mv"]);
        server
            .files
            .push((format!("{DOCUMENTS}/index.html"), files.page.clone()));
        ImageSpec {
            arguments: ["sh", "-c", &serve].map(str::to_owned).into(),
            ..server
        }
    });
    tools
        .into_iter()
        .chain([small, nonroot, pause])
        .chain(servers)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_image_needs_a_program_that_no_package_brings() {
        let files = Files {
            agnhost: "/agnhost".into(),
            certificate: ["/crt", "/key"].map(Into::into),
            page: "/page".into(),
        };
        let images = images(&files, &["busybox", "sh"]);
        assert_eq!(images.len(), 9);
        for image in &images {
            let unknown = image
                .programs
                .iter()
                .find(|program| !PROGRAMS.iter().any(|(name, _)| name == program));
            assert_eq!(unknown, None, "{}", image.reference);
        }
    }
}
