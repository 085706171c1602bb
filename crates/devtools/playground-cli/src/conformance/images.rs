//! The images of Kubernetes' tests, under the names that the tests want, made of programs of this machine.

use std::path::Path;

use liqo_playground::ImageSpec;

/// What the images hold besides busybox, each with its Debian package.
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

/// All images. `applets` are those of busybox; the web servers serve the file `page`.
pub fn images(agnhost: &Path, applets: &[&str], page: &Path) -> Vec<ImageSpec> {
    let named = |name: &str, program: &Path| ImageSpec { user: 0, ..ImageSpec::new(format!("registry.k8s.io/{name}"), program) };
    let with_shell = |name: &str, program: &Path, programs: &[&str]| {
        let link = |applet: &&str| (format!("/bin/{applet}"), "/usr/bin/busybox".to_owned());
        let busybox = (program != Path::new(BUSYBOX)).then(|| ("/usr/bin/busybox".to_owned(), BUSYBOX.into()));
        ImageSpec {
            programs: programs.iter().map(|program| (*program).to_owned()).collect(),
            files: busybox.into_iter().collect(),
            links: applets.iter().filter(|applet| **applet != "busybox").map(link).collect(),
            ..named(name, program)
        }
    };
    let busybox = Path::new(BUSYBOX);
    let mut small = with_shell("e2e-test-images/busybox:1.37.0-1", busybox, &["bash"]);
    // `sh` keeps variables whose names are no identifiers, as the busybox of that version does. `/bin/sh` has the error texts of busybox.
    small.links.push(("/usr/sbin/sh".to_owned(), "/usr/sbin/bash".to_owned()));
    let tools = ["agnhost:2.56", "jessie-dnsutils:1.7"].map(|name| {
        let programs = ["bash", "curl", "dig", "getent", "ip", "nc", "ss"];
        let mut image = with_shell(&format!("e2e-test-images/{name}"), agnhost, &programs);
        // Tests override the program by the second name, and compare how the first one was called.
        image.links.push(("/agnhost-2".to_owned(), "/agnhost".to_owned()));
        ImageSpec { place: Some("/agnhost".to_owned()), default_arguments: vec!["pause".to_owned()], ..image }
    });
    let nonroot = ImageSpec { user: 1234, ..with_shell("e2e-test-images/nonroot:1.4", busybox, &[]) };
    // The first process of a container does not end by a signal that it does not handle: agnhost handles it, and so does the shell.
    let pause = ImageSpec { arguments: vec!["pause".to_owned()], user: 65535, ..named("pause:3.10.1", agnhost) };
    let serve = format!("trap 'exit 0' TERM; httpd -f -p 80 -h {DOCUMENTS} & wait");
    let servers = ["httpd:2.4.38-4", "httpd:2.4.39-4", "nginx:1.14-4", "nginx:1.15-4"].map(|name| {
        let mut server = with_shell(&format!("e2e-test-images/{name}"), busybox, &["mv"]);
        server.files.push((format!("{DOCUMENTS}/index.html"), page.to_owned()));
        ImageSpec { arguments: ["sh", "-c", &serve].map(str::to_owned).into(), ..server }
    });
    tools.into_iter().chain([small, nonroot, pause]).chain(servers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_image_needs_a_program_that_no_package_brings() {
        let images = images(Path::new("/cache/agnhost"), &["busybox", "sh"], Path::new("/page"));
        assert_eq!(images.len(), 9);
        for image in &images {
            let unknown = image.programs.iter().find(|program| !PROGRAMS.iter().any(|(name, _)| name == program));
            assert_eq!(unknown, None, "{}", image.reference);
        }
    }
}
