use super::*;

fn rome() -> ClusterId {
    ClusterId::of_public_key(&[1; 32])
}

fn turin() -> ClusterId {
    ClusterId::of_public_key(&[2; 32])
}

fn mapped(consumer: ClusterId, home: &str) -> MappedNamespaceState {
    MappedNamespaceState {
        consumer,
        home: home.to_owned(),
        terminating: false,
    }
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 244, 0, last])
}

fn name(text: &str) -> DomainName {
    DomainName::parse(text).unwrap()
}

fn domain() -> DomainName {
    name("cluster.local")
}

/// rome has `demo`, `shop` and `same` here, and turin has `demo` and `bank`. The address of a pod
/// of rome's `demo` ends with 1, of turin's with 2.
fn directory() -> Directory {
    let mut directory = Directory::default();
    for (here, consumer, home) in [
        ("demo-rome-1", rome(), "demo"),
        ("shop-rome-1", rome(), "shop"),
        ("same", rome(), "same"),
        ("demo-turin-2", turin(), "demo"),
        ("bank-turin-2", turin(), "bank"),
    ] {
        directory.namespace_changed(here, None, Some(&mapped(consumer, home)));
    }
    directory.pod_changed(&Key::new("demo-rome-1", "web"), &[], &[address(1)]);
    directory.pod_changed(&Key::new("demo-turin-2", "web"), &[], &[address(2)]);
    directory
}

/// The name that is asked for a pod; the same one if the question passes unchanged.
fn asked(directory: &Directory, pod: u8, text: &str) -> String {
    match directory.decide(address(pod), &name(text), 1, &domain()) {
        NameDecision::Unchanged => text.to_owned(),
        NameDecision::Translate { name, .. } => written(&name),
        other => format!("{other:?}"),
    }
}

fn written(name: &DomainName) -> String {
    name.labels()
        .iter()
        .map(|label| String::from_utf8_lossy(label).into_owned())
        .collect::<Vec<_>>()
        .join(".")
}

#[test]
fn names_of_all_namespaces_of_the_same_consumer_become_those_of_this_cluster() {
    let directory = directory();
    for (from, to) in [
        (
            "web.demo.svc.cluster.local",
            "web.demo-rome-1.svc.cluster.local",
        ),
        (
            "web.shop.svc.cluster.local",
            "web.shop-rome-1.svc.cluster.local",
        ),
        (
            "web-0.web.demo.svc.cluster.local",
            "web-0.web.demo-rome-1.svc.cluster.local",
        ),
        (
            "_http._tcp.web.demo.svc.cluster.local",
            "_http._tcp.web.demo-rome-1.svc.cluster.local",
        ),
        ("demo.svc.cluster.local", "demo-rome-1.svc.cluster.local"),
        (
            "10-244-0-7.demo.pod.cluster.local",
            "10-244-0-7.demo-rome-1.pod.cluster.local",
        ),
        (
            "Web.DEMO.Svc.Cluster.LOCAL",
            "Web.demo-rome-1.Svc.Cluster.LOCAL",
        ),
        // What search domains make of `web.shop`.
        (
            "web.shop.demo.svc.cluster.local",
            "web.shop.demo-rome-1.svc.cluster.local",
        ),
        (
            "demo.demo.svc.cluster.local",
            "demo.demo-rome-1.svc.cluster.local",
        ),
    ] {
        assert_eq!(asked(&directory, 1, from), to);
    }
    assert_eq!(
        asked(&directory, 2, "web.demo.svc.cluster.local"),
        "web.demo-turin-2.svc.cluster.local"
    );
}

#[test]
fn other_names_pass_unchanged() {
    let directory = directory();
    for text in [
        "example.org",
        "web.demo",
        "web.demo.svc",
        "demo",
        "cluster.local",
        "svc.cluster.local",
        "web.demo.svc.example.org",
        "web.demo.svc.cluster.local.example.org",
        "web.demo.other.cluster.local",
        "web.same.svc.cluster.local",
        "kubernetes.default.svc.cluster.local",
        // As it is called here.
        "web.demo-rome-1.svc.cluster.local",
    ] {
        assert_eq!(asked(&directory, 1, text), text);
    }
}

#[test]
fn names_in_namespaces_of_the_provider_and_of_other_consumers_do_not_exist() {
    let mut directory = directory();
    directory.pod_changed(&Key::new("bank-turin-2", "db"), &[], &[address(3)]);
    for text in [
        "kube-dns.kube-system.svc.cluster.local",
        "KUBE-DNS.Kube-System.SVC.cluster.local",
        "_dns._udp.kube-dns.kube-system.svc.cluster.local",
        "kube-system.svc.cluster.local",
        "10-244-0-2.kube-system.pod.cluster.local",
        "web.bank.svc.cluster.local",
        "web.bank-turin-2.svc.cluster.local",
        "other.default.svc.cluster.local",
        "x.kubernetes.default.svc.cluster.local",
        "kubernetes.default.pod.cluster.local",
        "*.*.svc.cluster.local",
    ] {
        assert_eq!(asked(&directory, 1, text), "NoSuchName", "{text}");
        assert_eq!(
            asked(&directory, 9, text),
            "UnknownPod",
            "{text}: the pod may be too new"
        );
    }
    assert_eq!(
        asked(&directory, 3, "web.bank.svc.cluster.local"),
        "web.bank-turin-2.svc.cluster.local"
    );
    assert_eq!(
        asked(&directory, 3, "web.bank-turin-2.svc.cluster.local"),
        "web.bank-turin-2.svc.cluster.local"
    );
    assert_eq!(
        asked(&directory, 3, "web.same.svc.cluster.local"),
        "NoSuchName",
        "it is rome's"
    );
}

#[test]
fn who_asks_is_known_by_address_only() {
    let mut directory = directory();
    let text = "web.demo.svc.cluster.local";
    assert_eq!(asked(&directory, 9, text), "UnknownPod");
    assert_eq!(
        asked(&directory, 9, "web.prod.svc.cluster.local"),
        "UnknownPod"
    );
    assert_eq!(
        asked(&directory, 9, "kubernetes.default.svc.cluster.local"),
        "kubernetes.default.svc.cluster.local"
    );
    assert_eq!(asked(&directory, 9, "example.org"), "example.org");
    // The address moves to another pod before the former one is seen to end.
    directory.pod_changed(&Key::new("demo-turin-2", "db"), &[], &[address(1)]);
    assert_eq!(
        asked(&directory, 1, text),
        "UnknownPod",
        "it belongs to pods of two consumers"
    );
    assert_eq!(directory.consumer_of(address(1)), None);
    // The same state again.
    directory.pod_changed(&Key::new("demo-turin-2", "db"), &[], &[address(1)]);
    directory.pod_changed(&Key::new("demo-rome-1", "web"), &[address(1)], &[]);
    assert_eq!(
        asked(&directory, 1, text),
        "web.demo-turin-2.svc.cluster.local"
    );
    // And to another pod of the same consumer.
    directory.pod_changed(&Key::new("bank-turin-2", "db"), &[], &[address(1)]);
    assert_eq!(
        asked(&directory, 1, text),
        "web.demo-turin-2.svc.cluster.local"
    );
    assert_eq!(directory.consumer_of(address(1)), Some(&turin()));
    directory.pod_changed(&Key::new("bank-turin-2", "db"), &[address(1)], &[]);
    directory.pod_changed(&Key::new("demo-turin-2", "db"), &[address(1)], &[]);
    assert_eq!(asked(&directory, 1, text), "UnknownPod");
}

#[test]
fn a_namespace_that_is_gone_has_no_name_and_a_renamed_one_its_new_name() {
    let mut directory = directory();
    let (old, text) = (mapped(rome(), "shop"), "web.shop.svc.cluster.local");
    let ending = MappedNamespaceState {
        terminating: true,
        ..old.clone()
    };
    directory.namespace_changed("shop-rome-1", Some(&old), Some(&ending));
    assert_eq!(
        asked(&directory, 1, text),
        "web.shop-rome-1.svc.cluster.local",
        "there is no other"
    );
    directory.namespace_changed("zoo", None, Some(&old));
    assert_eq!(asked(&directory, 1, text), "web.zoo.svc.cluster.local");
    directory.namespace_changed("shop-rome-1", Some(&ending), None);
    directory.namespace_changed("zoo", Some(&old), None);
    assert_eq!(asked(&directory, 1, text), "NoSuchName");
    for (here, consumer, home) in [
        ("demo-rome-1", rome(), "demo"),
        ("same", rome(), "same"),
        ("demo-turin-2", turin(), "demo"),
        ("bank-turin-2", turin(), "bank"),
    ] {
        directory.namespace_changed(here, Some(&mapped(consumer, home)), None);
    }
    assert!(directory.by_home.is_empty() && directory.namespaces.is_empty());
}

#[test]
fn names_in_the_domain_of_home_become_those_of_this_cluster_and_come_back() {
    let mut directory = directory();
    directory.domain_changed(&rome(), Some(&name("corp.local")));
    for (from, to) in [
        (
            "web.demo.svc.corp.local",
            "web.demo-rome-1.svc.cluster.local",
        ),
        (
            "web-0.web.demo.svc.Corp.Local",
            "web-0.web.demo-rome-1.svc.cluster.local",
        ),
        (
            "10-244-0-7.demo.pod.corp.local",
            "10-244-0-7.demo-rome-1.pod.cluster.local",
        ),
        ("web.same.svc.corp.local", "web.same.svc.cluster.local"),
        // Namespaces that are not here: those of the provider with such a name are others.
        ("kube-dns.kube-system.svc.corp.local", "NoSuchName"),
        ("bank.svc.corp.local", "NoSuchName"),
        ("web.demo-turin-2.svc.corp.local", "NoSuchName"),
        // Pods that were created before the domain was known.
        (
            "web.demo.svc.cluster.local",
            "web.demo-rome-1.svc.cluster.local",
        ),
        ("kube-dns.kube-system.svc.cluster.local", "NoSuchName"),
        // At home, the cluster's DNS answers for the whole domain. The first one is what the last
        // search domain makes of a host.
        (
            "api.example.org.Corp.Local",
            "api.example.org.cluster.local",
        ),
        ("mail.corp.local", "mail.cluster.local"),
        ("corp.local", "cluster.local"),
        ("svc.corp.local", "svc.cluster.local"),
        ("api.example.org", "api.example.org"),
        ("mycorp.local", "mycorp.local"),
    ] {
        assert_eq!(asked(&directory, 1, from), to);
    }
    assert_eq!(
        asked(&directory, 2, "web.demo.svc.corp.local"),
        "web.demo.svc.corp.local",
        "the domain is another consumer's"
    );
    assert_eq!(
        asked(&directory, 9, "web.same.svc.corp.local"),
        "UnknownPod",
        "the pod may be too new"
    );
    assert_eq!(asked(&directory, 9, "mail.corp.local"), "mail.corp.local");
    let home = |text: &str| {
        directory
            .home_name(&rome(), &name(text), &domain())
            .map(|name| written(&name))
    };
    assert_eq!(
        home("web-0.web.demo-rome-1.svc.cluster.local").as_deref(),
        Some("web-0.web.demo.svc.corp.local")
    );
    assert_eq!(
        home("web.same.svc.cluster.local").as_deref(),
        Some("web.same.svc.corp.local")
    );
    assert_eq!(
        (
            home("web.demo-turin-2.svc.cluster.local"),
            home("mail.corp.local")
        ),
        (None, None)
    );
    directory.domain_changed(&rome(), None);
    assert_eq!(
        asked(&directory, 1, "web.demo.svc.corp.local"),
        "web.demo.svc.corp.local"
    );
}

#[test]
fn a_consumer_that_announces_a_domain_of_others_harms_only_itself() {
    let mut directory = directory();
    directory.domain_changed(&rome(), Some(&name("com")));
    for (pod, asked_for) in [
        (1, "example.cluster.local"),
        (2, "example.com"),
        (9, "example.com"),
    ] {
        assert_eq!(asked(&directory, pod, "example.com"), asked_for);
    }
    // A domain that contains the one of this cluster.
    directory.domain_changed(&rome(), Some(&name("local")));
    for (from, to) in [
        ("web.demo.svc.local", "web.demo-rome-1.svc.cluster.local"),
        (
            "web.demo.svc.cluster.local",
            "web.demo-rome-1.svc.cluster.local",
        ),
        ("other.cluster.local", "other.cluster.local"),
        ("printer.local", "printer.cluster.local"),
    ] {
        assert_eq!(asked(&directory, 1, from), to);
    }
    // One that this cluster's contains.
    directory.domain_changed(&rome(), Some(&name("rome.cluster.local")));
    assert_eq!(
        asked(&directory, 1, "printer.rome.cluster.local"),
        "printer.cluster.local"
    );
    assert_eq!(
        asked(&directory, 1, "printer.cluster.local"),
        "printer.cluster.local"
    );
}

#[test]
fn a_service_that_stands_for_another_name_is_an_alias_for_pods_of_the_same_consumer() {
    let mut directory = directory();
    let target = name("db.example.org");
    for namespace in ["demo-rome-1", "same", "kube-system"] {
        directory.external_name_changed(&Key::new(namespace, "db"), Some(&target));
    }
    let alias = NameDecision::Alias {
        target: target.clone(),
    };
    let decide = |directory: &Directory, pod: u8, text: &str| {
        directory.decide(address(pod), &name(text), 1, &domain())
    };
    for text in [
        "db.demo.svc.cluster.local",
        "DB.Demo.svc.cluster.local",
        "db.same.svc.cluster.local",
    ] {
        assert_eq!(decide(&directory, 1, text), alias, "{text}");
    }
    for text in [
        "x.db.demo.svc.cluster.local",
        "db.demo.pod.cluster.local",
        "web.demo.svc.cluster.local",
        "db.kube-system.svc.cluster.local",
        "db.demo-rome-1.svc.cluster.local",
    ] {
        assert!(
            !matches!(decide(&directory, 1, text), NameDecision::Alias { .. }),
            "{text}"
        );
    }
    assert_eq!(
        asked(&directory, 2, "db.demo.svc.cluster.local"),
        "db.demo-turin-2.svc.cluster.local"
    );
    assert_eq!(
        decide(&directory, 9, "db.same.svc.cluster.local"),
        NameDecision::UnknownPod,
        "the pod may be too new"
    );
    directory.domain_changed(&rome(), Some(&name("corp.local")));
    assert_eq!(decide(&directory, 1, "db.demo.svc.corp.local"), alias);
    directory.external_name_changed(&Key::new("demo-rome-1", "db"), None);
    assert_eq!(
        asked(&directory, 1, "db.demo.svc.cluster.local"),
        "db.demo-rome-1.svc.cluster.local"
    );
}

#[test]
fn a_pod_whose_address_is_hidden_resolves_names_that_mean_the_same_for_everybody() {
    let mut directory = directory();
    let text = "web.same.svc.cluster.local";
    assert_eq!(asked(&directory, 9, text), text);
    directory.namespace_changed("same-turin-2", None, Some(&mapped(turin(), "same")));
    assert_eq!(
        asked(&directory, 9, text),
        "UnknownPod",
        "it may be a pod of turin"
    );
}

#[test]
fn answers_have_the_names_of_home_and_only_those_of_the_same_consumer() {
    let directory = directory();
    let home = |text: &str| {
        directory
            .home_name(&rome(), &name(text), &domain())
            .map(|name| written(&name))
    };
    assert_eq!(
        home("web-0.web.demo-rome-1.svc.cluster.local").as_deref(),
        Some("web-0.web.demo.svc.cluster.local")
    );
    for text in [
        "web.demo-turin-2.svc.cluster.local",
        "web.same.svc.cluster.local",
        "web.demo.svc.cluster.local",
        "ns.dns.cluster.local",
    ] {
        assert_eq!(home(text), None, "{text}");
    }
}

#[test]
fn the_name_of_an_address_is_translated_in_the_answer() {
    let name = name("7.0.244.10.in-addr.arpa");
    let decision = directory().decide(address(1), &name, PTR, &domain());
    assert_eq!(
        decision,
        NameDecision::Translate {
            name: name.clone(),
            consumer: rome()
        }
    );
    assert_eq!(
        directory().decide(address(9), &name, PTR, &domain()),
        NameDecision::Unchanged
    );
    let other = super::tests::name("7.0.244.10.example.org");
    assert_eq!(
        directory().decide(address(1), &other, PTR, &domain()),
        NameDecision::Unchanged,
        "not the name of an address"
    );
}

#[test]
fn a_name_that_would_be_too_long_here_does_not_exist() {
    let long = format!(
        "{0}.{0}.{0}.{1}.demo.svc.cluster.local",
        "a".repeat(63),
        "b".repeat(38)
    );
    assert_eq!(
        directory().decide(address(1), &name(&long), 1, &domain()),
        NameDecision::NoSuchName
    );
    let mut directory = directory();
    directory.domain_changed(&rome(), Some(&name("x")));
    let long = format!("{0}.{0}.{0}.{1}.x", "a".repeat(63), "b".repeat(55));
    assert_eq!(
        directory.decide(address(1), &name(&long), 1, &domain()),
        NameDecision::NoSuchName
    );
}

#[test]
fn an_address_that_stayed_unknown_waits_again_after_a_while_or_a_change() {
    let mut directory = directory();
    let begin = Instant::now();
    assert!(directory.may_wait(address(9), begin));
    directory.note_wait(address(9), begin);
    assert!(
        !directory.may_wait(address(9), begin + NO_WAIT / 2)
            && directory.may_wait(address(8), begin)
    );
    assert!(directory.may_wait(address(9), begin + NO_WAIT));
    directory.pod_changed(&Key::new("demo-rome-1", "new"), &[], &[address(9)]);
    directory.note_wait(address(9), begin);
    assert!(directory.may_wait(address(9), begin), "it is known");
    directory.pod_changed(&Key::new("demo-rome-1", "new"), &[address(9)], &[]);
    directory.note_wait(address(9), begin);
    assert!(!directory.may_wait(address(9), begin));
    directory.namespace_changed("zoo", None, Some(&mapped(rome(), "zoo")));
    assert!(
        directory.may_wait(address(9), begin),
        "its namespace may be the new one"
    );
}

#[test]
fn only_some_unknown_addresses_are_remembered() {
    let mut directory = directory();
    let begin = Instant::now();
    let addresses = || {
        (0..u32::try_from(MAX_UNKNOWN).unwrap()).map(|number| IpAddr::from(number.to_be_bytes()))
    };
    addresses().for_each(|address| directory.note_wait(address, begin));
    directory.note_wait(address(9), begin);
    assert!(directory.unknown.len() == MAX_UNKNOWN && directory.may_wait(address(9), begin));
    directory.note_wait(address(9), begin + NO_WAIT);
    assert!(directory.unknown.len() == 1 && !directory.may_wait(address(9), begin + NO_WAIT));
}
