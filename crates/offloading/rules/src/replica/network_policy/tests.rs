use super::*;

fn policy(spec: &Value) -> NormalizedPolicy {
    NormalizedPolicy::from_spec(spec)
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn block(cidr: &str, except: &[&str]) -> Option<IpBlock> {
    IpBlock::new(net(cidr), except.iter().map(|one| net(one)))
}

#[test]
fn a_policy_is_written_in_one_way_and_read_back_the_same() {
    let spec = json!({
        "podSelector": { "matchLabels": { "app": "web" } },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{
            "from": [
                { "podSelector": {} },
                { "namespaceSelector": { "matchLabels": { "team": "a" } } },
                { "namespaceSelector": {}, "podSelector": { "matchLabels": { "app": "b" } } },
                { "ipBlock": { "cidr": "192.0.2.0/24", "except": ["192.0.2.8/29"] } },
            ],
            "ports": [{ "protocol": "TCP", "port": 80 }, { "protocol": "TCP", "port": "web" },
                { "protocol": "UDP", "port": 1000, "endPort": 2000 }, { "protocol": "SCTP" }],
        }],
    });
    let read = policy(&spec);
    assert!(!read.narrowed && read.egress == Some(Vec::new()));
    assert_eq!(policy(&read.to_json()), read);
    let mut other = spec;
    other["ingress"][0]["from"]
        .as_array_mut()
        .unwrap()
        .reverse();
    other["ingress"][0]["ports"]
        .as_array_mut()
        .unwrap()
        .reverse();
    other["egress"] = json!([]);
    assert_eq!(policy(&other).to_json(), read.to_json());
}

#[test]
fn the_directions_are_those_that_the_api_server_would_take() {
    let directions = |spec: Value| {
        let policy = policy(&spec);
        (policy.ingress.is_some(), policy.egress.is_some())
    };
    assert_eq!(directions(json!({ "podSelector": {} })), (true, false));
    assert_eq!(
        directions(json!({ "podSelector": {}, "egress": [{}] })),
        (true, true)
    );
    assert_eq!(
        directions(json!({ "podSelector": {}, "policyTypes": [], "egress": [{}] })),
        (true, true)
    );
    assert_eq!(
        directions(json!({ "podSelector": {}, "policyTypes": ["Egress"], "ingress": [{}] })),
        (false, true)
    );
}

#[test]
fn no_peers_and_no_ports_are_everybody_and_everything_only_if_nothing_was_said() {
    let rules = |rule: Value| {
        policy(&json!({ "podSelector": {}, "ingress": [rule] }))
            .to_json()
            .get("ingress")
            .cloned()
    };
    assert_eq!(rules(json!({})), Some(json!([{}])));
    assert_eq!(
        rules(json!({ "from": [], "ports": null })),
        Some(json!([{}]))
    );
    for nobody in [
        json!({ "from": [{}] }),
        json!({ "from": [{ "podSelector": {}, "ipBlock": { "cidr": "192.0.2.0/24" } }] }),
        json!({ "from": [{ "somebodyNew": {} }] }),
        json!({ "from": [{ "podSelector": { "matchNew": {} } }] }),
        json!({ "from": [{ "namespaceSelector": {}, "podSelector": { "matchNew": {} } }] }),
        json!({ "from": [{ "ipBlock": { "cidr": "192.0.2.0" } }] }),
        json!({ "from": [{ "ipBlock": { "cidr": "192.0.2.0/24", "except": ["junk"] } }] }),
        json!({ "from": [{ "ipBlock": { "cidr": "192.0.2.0/24", "except": ["192.0.0.0/16"] } }] }),
        json!({ "ports": [{ "protocol": "ICMP" }] }),
        json!({ "ports": [{ "port": 0 }] }),
        json!({ "ports": [{ "port": 80, "endPort": 79 }] }),
        json!({ "ports": [{ "port": "web", "endPort": 79 }] }),
        json!({ "ports": [{ "port": 80, "more": 1 }] }),
        json!({ "from": "everybody" }),
        json!({ "somethingNew": true }),
    ] {
        assert_eq!(rules(nobody.clone()), None, "{nobody}");
        assert!(
            policy(&json!({ "podSelector": {}, "ingress": [nobody.clone()] })).narrowed,
            "{nobody}"
        );
    }
    let some = rules(
        json!({ "from": [{ "somebodyNew": {} }, { "podSelector": {} }], "ports": [{ "port": 0 }, { "port": 1 }] }),
    );
    assert_eq!(
        some,
        Some(
            json!([{ "from": [{ "podSelector": {} }], "ports": [{ "protocol": "TCP", "port": 1 }] }])
        )
    );
}

#[test]
fn a_policy_that_cannot_be_read_closes_everything() {
    for spec in [
        json!(null),
        json!({ "podSelector": { "matchNew": {} } }),
        json!({ "podSelector": {}, "policyTypes": ["Sideways"] }),
        json!({ "podSelector": {}, "ingress": "all" }),
        json!({ "podSelector": {}, "subject": {} }),
    ] {
        assert_eq!(policy(&spec), NormalizedPolicy::closed(), "{spec}");
    }
    assert_eq!(
        NormalizedPolicy::closed().to_json(),
        json!({ "podSelector": {}, "policyTypes": ["Ingress", "Egress"] })
    );
}

#[test]
fn ranges_are_cut_and_what_they_except_with_them() {
    let whole = block("10.0.0.0/8", &["10.244.1.0/24", "10.9.0.0/16"]).unwrap();
    assert_eq!(
        whole.part_within(&net("10.244.0.0/16")),
        block("10.244.0.0/16", &["10.244.1.0/24"])
    );
    assert_eq!(
        whole.part_within(&net("10.244.1.0/25")),
        None,
        "all of it is excepted"
    );
    assert_eq!(whole.part_within(&net("0.0.0.0/0")), Some(whole.clone()));
    assert_eq!(whole.part_within(&net("192.0.2.0/24")), None);
    assert_eq!(
        block("10.0.0.0/8", &["10.0.0.0/9", "10.128.0.0/9"]),
        None,
        "two halves are all"
    );
    assert!(
        whole.covers(&net("10.245.0.0/16"))
            && !whole.covers(&net("10.244.0.0/16"))
            && !whole.covers(&net("0.0.0.0/0"))
    );
    assert!(
        whole.contains(&"10.8.0.1".parse().unwrap())
            && !whole.contains(&"10.9.0.1".parse().unwrap())
    );
}

#[test]
fn the_internet_is_what_is_not_private() {
    let open = |cidr: &str| {
        Some(
            block(cidr, &[])?
                .part_on_internet([net("203.0.113.7/32")])?
                .except,
        )
    };
    assert_eq!(open("203.0.113.0/24"), Some([net("203.0.113.7/32")].into()));
    assert_eq!(open("10.1.0.0/16"), None);
    assert_eq!(open("203.0.113.7/32"), None);
    let all = open("0.0.0.0/0").unwrap();
    for private in ["10.0.0.0/8", "169.254.0.0/16", "203.0.113.7/32"] {
        assert!(all.contains(&net(private)), "{private}");
    }
    let six = [
        "::1/128",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2001::/32",
        "2002::/16",
        "fc00::/7",
        "fe80::/9",
        "ff00::/8",
    ];
    assert_eq!(open("::/0").unwrap(), six.map(net).into());
    for (what, address) in [
        ("private IPv4 behind a translator", "64:ff9b::a00:1/128"),
        ("the same by a prefix of one's own", "64:ff9b:1::a00:1/128"),
        ("the host of a node of Azure", "168.63.129.16/32"),
        ("metadata of Oracle's cloud", "192.0.0.192/32"),
        ("this host", "0.0.0.0/32"),
        ("a network for measurements", "198.19.255.1/32"),
        ("a reserved range that some clusters use", "240.1.2.3/32"),
        ("everybody in this network", "255.255.255.255/32"),
        ("multicast", "239.1.1.1/32"),
        ("private IPv4 in 6to4", "2002:a00:1::/128"),
        ("private IPv4 in Teredo", "2001:0:a00:1::/128"),
        ("former private IPv6", "fec0::1/128"),
        ("multicast over IPv6", "ff02::1/128"),
    ] {
        assert_eq!(open(address), None, "{what}");
    }
}

#[test]
fn a_range_is_private_only_if_all_of_it_is() {
    for (range, private) in [
        ("10.1.0.0/16", true),
        ("10.0.0.0/7", false),
        ("0.0.0.0/0", false),
        ("fd00::/8", true),
    ] {
        assert_eq!(is_private(&net(range)), private, "{range}");
    }
}

#[test]
fn a_port_has_the_numbers_and_names_that_it_says() {
    let port = |value: Value| PolicyPort::from_json(&value).unwrap();
    for (value, has) in [
        (json!({ "protocol": "UDP" }), true),
        (json!({ "protocol": "UDP", "port": 53 }), true),
        (
            json!({ "protocol": "UDP", "port": 50, "endPort": 60 }),
            true,
        ),
        (json!({ "protocol": "UDP", "port": "dns" }), true),
        (json!({ "protocol": "UDP", "port": "web" }), false),
        (json!({ "protocol": "UDP", "port": 54 }), false),
        (json!({ "port": 53 }), false),
    ] {
        assert_eq!(
            port(value.clone()).allows_port("UDP", 53, &["dns"]),
            has,
            "{value}"
        );
    }
}
